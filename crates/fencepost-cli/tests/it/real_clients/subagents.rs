//! Subagents share the session of their parent, and act for runs of their own.

use super::{
    model::{Step, after, fence, shell, text, tool},
    world::{Claude, Client, World},
};
use crate::with_each_client;
use serde_json::{Value, json};

const PROMPT: &str = "SUBAGENT: do the other work";

/// Starts a subagent, and waits for its end.
fn subagent(client: Client) -> Vec<Step> {
    match client {
        Claude => vec![tool(
            "Agent",
            None,
            json!({ "description": "other work", "prompt": PROMPT, "subagent_type": "general-purpose" }),
        )],
        Client::Codex => vec![
            tool("spawn_agent", Some("multi_agent_v1"), json!({ "message": PROMPT })),
            after(|results| {
                let spawned = results.last().expect("a result");
                let spawned: Value =
                    serde_json::from_str(spawned).unwrap_or_else(|e| panic!("{e}: {spawned}"));
                tool(
                    "wait_agent",
                    Some("multi_agent_v1"),
                    json!({ "targets": [spawned["agent_id"]], "timeout_ms": 3_600_000 }),
                )
            }),
        ],
    }
}

with_each_client! {
    fn a_subagent_has_a_run_of_its_own(client, program) {
        let parent = [
            &[fence("claim", json!({ "task": "auth-1" }))][..],
            &subagent(client),
            &[fence("claim", json!({})), fence("finish", json!({ "how": "done", "output": "done" }))],
        ];
        let world = World::set_up(client, program, vec![
            ("SUBAGENT", vec![
                shell("fence whoami --json"),
                shell("fence claim --keep auth-2"),
                shell("fence done --output 'by the shell'").behind("claimed in the shell"),
                fence("claim", json!({ "task": "auth-3" })),
                fence("finish", json!({ "how": "done", "output": "by a tool" })).behind("claimed by a tool"),
            ]),
            ("the work", parent.concat()),
        ]);
        world.add(4);
        let session = world.session("do the work");
        let mut runs = Vec::new();
        for (gate, task) in [("claimed in the shell", "task/auth-2"), ("claimed by a tool", "task/auth-3")] {
            world.model.reached(gate);
            let claims = world.claims();
            let of = |task: &str| {
                let found = claims.iter().find(|(_, resource)| resource == task);
                found.unwrap_or_else(|| panic!("{task} is not held: {}", world.model.summary())).0.clone()
            };
            runs.push((of("task/auth-1"), of(task)));
            world.model.open(gate);
        }
        session.succeeds();
        let (parent, child) = runs[0].clone();
        assert_eq!(runs[1], runs[0], "by MCP and in the shell");
        assert!(child.starts_with(&format!("{parent}.")), "{runs:?}");
        let whoami = world.model.result("SUBAGENT", 0);
        assert!(whoami.contains(&child), "{whoami}");
        let refused = world.model.conversation("the work").results;
        let refused = &refused[refused.len() - 2];
        assert!(refused.contains("auth-1@1"), "a second claim of the parent is refused: {refused}");
        let status = ["auth-1", "auth-2", "auth-3", "auth-4"].map(|task| world.status(task));
        assert_eq!(status, ["completed", "completed", "completed", "unassigned"], "{}", world.model.summary());
    }

    /// A subagent must not stop with a claim, and is told so once. Then its claim goes back, and its parent's stays.
    fn a_subagent_that_stops_gives_its_claim_back(client, program) {
        let parent = [
            &[fence("claim", json!({ "task": "auth-1" }))][..],
            &subagent(client),
            &[fence("finish", json!({ "how": "done", "output": "done" })).behind("the subagent is over")],
        ];
        let world = World::set_up(client, program, vec![
            ("SUBAGENT", vec![fence("claim", json!({ "task": "auth-2" })), text("I stop")]),
            ("the work", parent.concat()),
        ]);
        world.add(2);
        let session = world.session("do the work");
        world.model.reached("the subagent is over");
        let shown = world.model.conversation("SUBAGENT").shown;
        assert_eq!(shown.matches("you still hold task/auth-2@1").count(), 1, "{shown}");
        assert_eq!(world.status("auth-2"), "unassigned");
        let held: Vec<String> = world.claims().into_iter().map(|(_, task)| task).collect();
        assert_eq!(held, ["task/auth-1"]);
        world.model.open("the subagent is over");
        session.succeeds();
        assert_eq!(world.status("auth-1"), "completed");
    }
}
