//! Sessions that run at the same time, that stop, and that are killed.

use super::{
    guard::push,
    model::{fence, shell, text},
    world::{World, becomes, seen},
};
use crate::{running::until, with_each_client};
use serde_json::{Value, json};
use std::collections::HashSet;

with_each_client! {
    /// Two sessions in one repository get one task each.
    fn two_sessions_have_one_task_each(client, program) {
        let of = |gate| vec![
            shell("fence whoami --json"),
            fence("claim", json!({ "board": "auth" })),
            fence("finish", json!({ "how": "done", "output": "done" })).behind(gate),
        ];
        let world = World::set_up(client, program, vec![("the first work", of("first")), ("the second work", of("second"))]);
        world.add(2);
        let sessions = ["the first work", "the second work"].map(|prompt| world.session(prompt));
        world.model.reached("first");
        world.model.reached("second");
        let claims = world.claims();
        let runs: HashSet<_> = claims.iter().map(|(run, _)| run.as_str()).collect();
        let tasks: HashSet<_> = claims.iter().map(|(_, task)| task.as_str()).collect();
        assert_eq!((runs.len(), tasks), (2, HashSet::from(["task/auth-1", "task/auth-2"])), "{claims:?}");
        for script in ["the first work", "the second work"] {
            let whoami = world.model.result(script, 0);
            assert_eq!(runs.iter().filter(|run| whoami.contains(*run)).count(), 1, "{whoami}");
        }
        world.model.open("first");
        world.model.open("second");
        sessions.into_iter().for_each(|session| session.succeeds());
        assert_eq!([world.status("auth-1"), world.status("auth-2")], ["completed", "completed"]);
        assert_eq!(world.claims(), []);
    }

    /// Sessions that are killed give back what they claimed: by MCP, in the middle of a command, and in the shell.
    fn a_killed_session_gives_its_task_back(client, program) {
        let world = World::set_up(client, program, vec![
            ("by tool", vec![fence("claim", json!({ "task": "auth-1" })), shell("touch ../started; sleep 1000")]),
            ("by shell", vec![shell("fence claim --keep auth-2"), text("never").behind("claimed in the shell")]),
        ]);
        world.add(2);
        let sessions = ["by tool", "by shell"].map(|prompt| world.session(prompt));
        until("the command runs", || world.path("started").exists());
        world.model.reached("claimed in the shell");
        assert_eq!(world.claims().len(), 2, "{}", world.model.summary());
        let since = seen::now();
        for session in &sessions {
            session.kill();
        }
        for (task, how) in [("auth-2", "in the shell"), ("auth-1", "by MCP, in the middle of a command")] {
            becomes(&world, task, "unassigned");
            let seconds = since.elapsed().as_secs_f64();
            seen::say(&format!("{}: killed -9, its task (claimed {how}) is free after {seconds:.1} s", client.name()));
        }
        assert_eq!(world.claims(), []);
    }

    /// A session must not stop while it holds a claim, and is told so once. At its end the claim goes back with a note.
    fn a_stop_with_a_claim_is_refused_once(client, program) {
        let world = World::set_up(client, program, vec![
            ("give up", vec![fence("claim", json!({ "task": "auth-1" })), text("I stop")]),
        ]);
        world.add(1);
        world.session("give up").succeeds();
        let shown = world.model.conversation("give up").shown;
        assert_eq!(shown.matches("you still hold task/auth-1@1").count(), 1, "{shown}");
        assert_eq!(shown.matches("I stop").count(), 1, "the last request shows the first attempt: {shown}");
        let task = world.json(&["show", "auth-1"]);
        assert_eq!(task["task"]["status"], "unassigned", "{task}");
        let notes: Vec<&Value> = task["task"]["notes"].as_array().expect("a list").iter().map(|note| &note["text"]).collect();
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].as_str().is_some_and(|note| note.starts_with("given back: the session ended")), "{notes:?}");
        let runs = world.json(&["runs", "--all"]);
        let reason = &runs["runs"][0]["reason"];
        assert!(reason.as_str().is_some_and(|reason| reason.starts_with("the session ended")), "{runs}");
    }

    /// A session that ended, and is resumed, claims again: for the same run, and its shell agrees.
    fn a_resumed_session_claims_again(client, program) {
        let finish = || fence("finish", json!({ "how": "done", "output": "ok" }));
        let first = vec![fence("claim", json!({ "task": "auth-1" })), finish(), text("the end")];
        let resumed = vec![
            fence("claim", json!({ "task": "auth-2" })),
            shell("fence whoami --json"),
            push("second"),
            finish().behind("claimed again"),
        ];
        let world = World::set_up(client, program, vec![
            ("GO ON", [first.clone()[..2].to_vec(), resumed].concat()),
            ("the work", first),
        ]);
        world.add(2);
        world.session("do the work").succeeds();
        let ended = world.json(&["runs", "--all"])["runs"][0]["name"].as_str().expect("a run").to_owned();
        let session = world.resumed("GO ON");
        world.model.reached("claimed again");
        assert_eq!(world.claims(), [(ended.clone(), "task/auth-2".to_owned())], "{}", world.model.summary());
        world.model.open("claimed again");
        session.succeeds();
        let whoami = world.model.result("GO ON", 3);
        assert!(whoami.contains(&ended), "{whoami}");
        assert_eq!(world.pushed(), ["second", "begin"]);
        assert_eq!([world.status("auth-1"), world.status("auth-2")], ["completed", "completed"]);
    }
}
