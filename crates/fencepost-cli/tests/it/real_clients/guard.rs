//! A push needs a live claim.

use super::{
    model::{fence, shell},
    world::World,
};
use crate::with_each_client;
use serde_json::json;

const COMMIT_AND_PUSH: &str = "git commit -q --allow-empty -m NAME && git push -q && echo pushed NAME";

fn push(name: &str) -> super::model::Step {
    shell(COMMIT_AND_PUSH.replace("NAME", name))
}

with_each_client! {
    /// An agent claims by MCP and pushes by shell, loses its claim, is denied a push, and completes another task.
    fn a_push_after_a_lost_claim_is_denied(client, program) {
        let world = World::set_up(client, program, vec![("the work", vec![
            shell("fence whoami --json"),
            fence("claim", json!({ "board": "auth" })),
            push("first"),
            push("second").behind("before the second push"),
            fence("claim", json!({ "task": "auth-2" })),
            push("third"),
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
        let ended = session.end();
        assert_eq!(ended.code, 0, "{ended:?}");

        let result = |step| world.model.result("the work", step);
        assert!(result(0).contains(&run), "the shell acts for another run than MCP: {}", result(0));
        assert!(result(2).contains("pushed first"), "{}", result(2));
        let denied = result(3);
        assert!(denied.contains("holds no claim any more") && denied.contains(&format!("fence lift {run}")), "{denied}");
        assert!(result(5).contains("pushed third"), "{}", result(5));
        assert_eq!(world.pushed(), ["third", "first", "begin"]);
        assert_eq!(world.status("auth-2"), "completed");
        assert_eq!(world.claims(), [("person".to_owned(), "task/auth-1".to_owned())]);
    }
}
