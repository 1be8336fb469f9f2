//! A chain loses its claim between a guard and the effect after it, at each of its boundaries.
//!
//! A proxy holds back the answer of the guard. Meanwhile another chain gets the story, passes it and pushes it. Then the first chain
//! is told that it holds the claim, which was true when its guard asked.

use crate::{
    loops::{IMPLEMENT, appended, begin, config, git, told},
    proxy::Proxy,
    running::{Running, ask, until},
    sealed::{Sealed, Serving},
    work::succeeded,
};
use fencepost::admin;
use std::fs;

/// The effects that the guards of a story are for, in their order.
const BOUNDARIES: [&str; 8] =
    ["dispatch", "implement", "commit", "next step", "review", "next step", "merge", "verdict"];

fn each_boundary(world: Sealed) {
    world.ok(&["init"]);
    let fleet = ask(&world, async |fleet| fleet.call(admin::About {}).await).expect("the fleet").fleet;
    let server = Serving::start(&world, &[]);
    let proxy = Proxy::before(&server.url);
    let there = world.over(&proxy.url);
    begin(&there, &[("a", &[])]);
    succeeded(&there.sh("git init -q --bare hub.git && cd hub.git && fence git install"));
    git(&there, &format!("remote add hub {}", there.path().join("hub.git").display()));
    let steps = [("implement", IMPLEMENT), ("review", "echo review >> $OUT/ran")];
    config(&there, "l.toml", "at_end = 'push'\nremote = 'hub'", &steps);
    for (n, boundary) in BOUNDARIES.into_iter().enumerate() {
        let id = format!("l{n}");
        there.ok(&["loop", "start", &id, "--prd", "prd.json"]);
        let words = ["--json", "loop", "run", &id, "--config", "l.toml"];
        proxy.hold("/v1/loop/guard", n);
        let first = Running::fence(&there, &words);
        until("its guard has passed", || proxy.has_it());
        there.ok(&["unclaim", &format!("{id}-1")]);
        if boundary == "merge" {
            there.ok(&["unclaim", &format!("lock/loop/{id}")]);
        }
        let second = there.fence(&words);
        succeeded(&second);
        assert!(told(&second).contains(&"- end pushed".to_owned()), "{boundary}: {second:?}");
        let tips = || ["a", "main"].map(|name| git(&there, &format!("rev-parse loop/{id}/{name}")));
        let (before, ran) = (tips(), appended(&there, "ran"));
        proxy.release();
        let first = first.end();
        assert_eq!(first.code, 5, "{boundary}: {first:?}");
        // Its effect changed nothing, and no step was started.
        assert_eq!((tips(), appended(&there, "ran")), (before, ran), "{boundary}: {first:?}");
        let once =
            |step: &str| told(&first).iter().chain(&told(&second)).filter(|line| *line == step).count();
        assert_eq!(
            (once("a implement ok"), once("a verdict passed")),
            (1, 1),
            "{boundary}: {first:?} {second:?}"
        );
        // Whatever it still pushes is refused by the receiving repository. After the merge there was nothing left to commit under the
        // second fence, so the repository has to ask.
        let says = match boundary {
            "verdict" => {
                succeeded(&there.sh("cd hub.git && fence git install --ask"));
                format!("late push: claim `task/{id}-1@1` is over (already_finished)")
            }
            _ => format!("late push: task `{id}-1` was already pushed under fence 2"),
        };
        let pushed = there.sh(&format!(
            "git push hub $(git commit-tree -p main -m late -m 'Fence: task/{id}-1@1 {}' main^{{tree}}):refs/heads/late",
            &fleet[..8]
        ));
        assert!(pushed.code != 0 && pushed.err.contains(&says), "{boundary}: {pushed:?}");
        fs::remove_file(there.path().join("ran")).expect("removed");
    }
    // These were all of them.
    there.ok(&["loop", "start", "last", "--prd", "prd.json"]);
    proxy.hold("/v1/loop/guard", BOUNDARIES.len());
    succeeded(&there.fence(&["loop", "run", "last", "--config", "l.toml"]));
}

#[test]
fn a_claim_lost_after_any_guard_of_sqlite() {
    each_boundary(Sealed::sqlite());
}

#[test]
fn a_claim_lost_after_any_guard_of_postgres() {
    each_boundary(Sealed::postgres());
}
