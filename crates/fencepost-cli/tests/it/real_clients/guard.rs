//! A guarded command needs a live claim, whatever happens to the fleet and to `fence`.

use super::{
    model::{Step, fence, shell, tool},
    world::{Claude, Client::Codex, World},
};
use crate::with_each_client;
use serde_json::json;
use std::{fs, io::Write};

/// A commit with this subject, and its push.
pub fn push(subject: &str) -> Step {
    shell(format!("git commit -q --allow-empty -m {subject} && git push -q && echo pushed {subject}"))
}

with_each_client! {
    /// A session whose claim was taken may neither edit nor run anything until it acknowledges that.
    fn a_lost_session_is_stopped_until_it_acknowledges(client, program) {
        let edit = |name: &'static str| match client {
            Claude => tool("Write", None, json!({ "file_path": name, "content": "late\n" })),
            Codex => tool("apply_patch", None, json!(format!("*** Begin Patch\n*** Add File: {name}\n+late\n*** End Patch\n"))),
        };
        let world = World::set_up(client, program, vec![("the work", vec![
            fence("claim", json!({ "board": "auth" })),
            edit("before.txt"),
            // Its hook learns of the loss, at the latest.
            shell("true").behind("before the late edit"),
            edit("late.txt"),
            shell("touch late.sh && echo ran"),
            shell("fence ready"),
            fence("finish", json!({ "how": "acknowledge" })),
            edit("after.txt"),
            shell("touch after.sh && echo ran"),
            push("late"),
            fence("claim", json!({ "task": "auth-2" })),
            push("second"),
        ])]);
        world.add(2);
        // Codex offers apply_patch to some of its models only.
        let codex = ["--sandbox", "danger-full-access", "-c", "model=gpt-5.5"];
        let session = world.session_in(&world.path("repo"), "do the work", &codex);
        world.model.reached("before the late edit");
        world.ok(&["unclaim", "task/auth-1"]);
        world.ok(&["claim", "auth-1"]);
        world.model.open("before the late edit");
        session.succeeds();
        let result = |step| world.model.result("the work", step);
        for step in [3, 4] {
            let denied = result(step);
            assert!(denied.contains("lost claim task/auth-1@1") && denied.contains("holds task/auth-1 now"), "{denied}");
        }
        assert!(result(5).contains("auth-2"), "a plain command of fence passes: {}", result(5));
        assert!(result(6).contains("task/auth-1@1"), "{}", result(6));
        assert!(result(8).contains("ran"), "{}", result(8));
        assert!(result(9).contains("holds no claim any more"), "{}", result(9));
        assert!(result(11).contains("pushed second"), "{}", result(11));
        let made = ["before.txt", "late.txt", "late.sh", "after.txt", "after.sh"].map(|name| world.path("repo").join(name).exists());
        assert_eq!(made, [true, false, false, true, true], "{}", world.model.summary());
        assert_eq!(world.pushed(), ["second", "begin"]);
    }

    /// An agent claims by MCP and pushes by shell, loses its claim, is denied a push, and completes another task.
    fn a_push_after_a_lost_claim_is_denied(client, program) {
        let world = World::set_up(client, program, vec![("the work", vec![
            shell("fence whoami --json"),
            fence("claim", json!({ "board": "auth" })),
            push("first"),
            push("second").behind("before the second push"),
            fence("claim", json!({ "task": "auth-2" })),
            // As the page of `fence prime` has it.
            shell("git commit -q --allow-empty -m third && \
                   fence guard task/auth-2@1 -- fence lock git/main --wait -- sh -c 'git pull -q --rebase && git push -q' && echo pushed third"),
            fence("finish", json!({ "how": "done", "output": "pushed" })),
        ])]);
        world.add(2);
        let session = world.session("do the work");
        world.model.reached("before the second push");
        let claims = world.claims();
        assert_eq!(claims.len(), 1, "{claims:?}");
        let (run, resource) = claims[0].clone();
        assert_eq!(resource, "task/auth-1");
        assert!(run.starts_with(&format!("{}-", client.name())), "{run}");
        world.ok(&["unclaim", "task/auth-1", "--reason", "needed elsewhere"]);
        world.ok(&["claim", "auth-1"]);
        world.model.open("before the second push");
        session.succeeds();

        let result = |step| world.model.result("the work", step);
        assert!(result(0).contains(&run), "the shell acts for another run than MCP: {}", result(0));
        assert!(result(2).contains("pushed first"), "{}", result(2));
        let denied = result(3);
        assert!(denied.contains("lost claim task/auth-1@1") && denied.contains(&format!("fence lift {run}")), "{denied}");
        assert!(result(5).contains("pushed third"), "{}", result(5));
        assert_eq!(world.pushed(), ["third", "first", "begin"]);
        assert_eq!(world.status("auth-2"), "completed");
        assert_eq!(world.claims(), [("person".to_owned(), "task/auth-1".to_owned())]);
    }

    /// The same without MCP: a claim in the shell, and the page of `fence prime` as a skill.
    fn a_claim_in_the_shell_does_it(client, program) {
        let world = World::new(client, program, vec![("the work", vec![
            shell("fence claim --keep --quiet"),
            push("first"),
            shell("fence progress 'half-way'").behind("before it is lost"),
            push("second"),
            shell("fence claim --keep --quiet auth-2"),
            push("third"),
            shell("fence done --output pushed"),
        ])]);
        world.ok(if client == Claude { &["setup", "claude"] } else { client.setup() });
        world.trust();
        world.add(2);
        let session = world.session("do the work");
        world.model.reached("before it is lost");
        world.ok(&["cancel", "auth-1"]);
        world.model.open("before it is lost");
        session.succeeds();
        let result = |step| world.model.result("the work", step);
        assert_eq!(world.pushed(), ["third", "first", "begin"], "{}", world.model.summary());
        assert!(result(3).contains("lost claim task/auth-1@1 (the task was cancelled)"), "{}", result(3));
        assert_eq!(world.status("auth-2"), "completed");
        let shown = world.model.conversation("the work").shown;
        assert!(shown.contains("you lost claim task/auth-1@1: the task was cancelled"), "{shown}");
    }

    /// The hook of the client does not see a push by an alias; the git fence does. After a person's lift both let it pass.
    fn a_person_lifts_the_guard(client, program) {
        let world = World::set_up(client, program, vec![("the work", vec![
            fence("claim", json!({ "board": "auth" })),
            fence("finish", json!({ "how": "release", "note": "not today" })),
            push("first"),
            shell("git commit -q --allow-empty -m second && git ship"),
            shell("fence lift claude-1"),
            push("third").behind("lifted"),
        ])]);
        world.ok(&["git", "install"]);
        world.ok_sh("git config alias.ship 'push -q'");
        world.add(1);
        let session = world.session("do the work");
        world.model.reached("lifted");
        let result = |step| world.model.result("the work", step);
        assert!(result(2).contains("holds no claim any more"), "{}", result(2));
        assert!(result(3).contains("no push: this session"), "{}", result(3));
        assert!(result(4).contains("only a person lifts the guard"), "{}", result(4));
        assert_eq!(world.pushed(), ["begin"]);
        let run = world.json(&["runs", "--all"])["runs"][0]["name"].as_str().expect("a run").to_owned();
        world.ok(&["lift", &run, "--reason", "a hotfix"]);
        world.model.open("lifted");
        session.succeeds();
        assert_eq!(world.pushed(), ["third", "second", "begin"], "{}", result(5));
        let log = world.ok(&["events"]);
        assert!(log.contains("a hotfix"), "{log}");
    }

    /// The server goes away in the middle: nobody can tell whether the claim lives, and the push is blocked.
    fn a_push_without_the_server_is_blocked(client, program) {
        let (world, server) = World::served(client, program, vec![("the work", vec![
            fence("claim", json!({ "board": "auth" })),
            shell("fence progress working && echo told"),
            push("first"),
            push("second").behind("before the second push"),
            shell("ls && echo listed"),
        ])]);
        world.add(1);
        world.ok(client.setup());
        world.trust();
        let session = world.session("do the work");
        world.model.reached("before the second push");
        assert_eq!(world.claims().len(), 1, "{}", world.model.summary());
        drop(server);
        world.model.open("before the second push");
        session.succeeds();
        let result = |step| world.model.result("the work", step);
        assert!(result(1).contains("told"), "{}", result(1));
        assert!(result(2).contains("pushed first"), "{}", result(2));
        assert!(result(3).contains("nobody can tell whether this session"), "{}", result(3));
        assert!(result(4).contains("listed"), "{}", result(4));
        assert_eq!(world.pushed(), ["first", "begin"]);
    }

    /// Fence is removed after the setup: commands run, a push does not.
    fn without_fence_a_push_is_blocked(client, program) {
        // The hooks look there, too.
        if let Some(other) = ["/usr/local/bin/fence", "/opt/homebrew/bin/fence"].iter().find(|file| fs::exists(file).is_ok_and(|is| is)) {
            let _ = writeln!(std::io::stderr(), "NOT RUN: {}: without_fence_a_push_is_blocked: {other} is installed", client.name());
            return;
        }
        let world = World::set_up(client, program, vec![("the work", vec![shell("ls -a && echo listed"), push("first")])]);
        fs::remove_file(world.path("home/bin/fence")).expect("removed");
        world.session("do the work").succeeds();
        let result = |step| world.model.result("the work", step);
        assert!(result(0).contains(".git") && result(0).contains("listed"), "{}", result(0));
        assert!(result(1).contains("fence: blocked"), "{}", result(1));
        assert_eq!(world.pushed(), ["begin"]);
    }
}
