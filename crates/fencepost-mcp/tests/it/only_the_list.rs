//! An agent that knows nothing but `tools/list` and the hints of refusals: it claims, is refused, recovers and completes.

use crate::client::{Answer, Client, Local};
use fencepost::{claim, task};
use fencepost_testing::{World, on_both};
use serde_json::{Value, json};

/// A script that may use only tools and arguments of the list.
struct Script {
    client: Client,
    tools: Value,
}

impl Script {
    async fn new(world: &World) -> Self {
        let client = Client::new(Local::new(world, "the-session")).await;
        let tools = client.peer.list_all_tools().await.expect("the list");
        Self { client, tools: serde_json::to_value(tools).expect("JSON") }
    }

    fn tool(&self, name: &str) -> Option<&Value> {
        self.tools.as_array().expect("a list").iter().find(|tool| tool["name"] == name)
    }

    /// The tool whose description or argument says this.
    fn that(&self, says: &str) -> String {
        let mut found = self.tools.as_array().expect("a list").iter();
        let found = found.find(|tool| tool["description"].as_str().is_some_and(|about| about.contains(says)));
        found.unwrap_or_else(|| panic!("no tool says `{says}`"))["name"].as_str().expect("a name").to_owned()
    }

    async fn call(&self, tool: &str, arguments: Value) -> Value {
        let schema = &self.tool(tool).unwrap_or_else(|| panic!("`{tool}` is not in the list"))["inputSchema"];
        for (name, value) in arguments.as_object().expect("an object") {
            let field = &schema["properties"][name];
            assert!(field.is_object(), "`{name}` is no argument of {tool}");
            let words = field["enum"].as_array();
            assert!(words.is_none_or(|words| words.contains(value)), "{name} of {tool}");
        }
        let Answer(reply) = self.client.call(tool, arguments).await;
        reply
    }

    /// The tools that the hint of a refusal names, in its order.
    fn advised(&self, reply: &Value) -> Vec<String> {
        let hint = reply["error"]["hint"].as_str().unwrap_or_else(|| panic!("no hint: {reply}"));
        let words = hint.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| self.tool(word).is_some()).map(str::to_owned).collect()
    }
}

on_both! {
    async fn the_list_and_the_hints_are_enough(world: World) {
        let first = world.add("theirs").await;
        world.add("taken away").await;
        world.add("finished").await;
        world.claim(&first, "another").await.expect("claimed");
        let script = Script::new(&world).await;

        // It wants a task that somebody else holds.
        let claim = script.that("before you work on it");
        let reply = script.call(&claim, json!({"task": first})).await;
        assert_eq!(reply["error"]["code"], "already_claimed");
        assert!(reply["error"]["message"].as_str().is_some_and(|message| message.contains("another")));
        assert_eq!(script.advised(&reply)[0], "claim", "{reply}");

        // It takes another, and a person takes that one away.
        let reply = script.call("claim", json!({})).await;
        let token = reply["claim"]["token"].as_str().expect("a token").to_owned();
        let report = script.that("how the work on your task goes");
        assert!(script.call(&report, json!({"text": "begun"})).await.get("error").is_none());
        let resource = token.split('@').next().expect("it").to_owned();
        let unclaim = claim::Unclaim { resource, reason: None };
        world.fleet.call(unclaim).await.expect("unclaimed");
        let reply = script.call(&report, json!({"text": "half done", "token": token})).await;
        assert_eq!(reply["error"]["code"], "lease_expired", "{reply}");
        let guard = script.that("right before each effect");
        assert_eq!(script.call(&guard, json!({"token": token})).await["error"]["code"], "lease_expired");
        assert_eq!(script.advised(&reply), ["claim"]);

        // It goes on with the next, and completes all that is left.
        let finish = script.that("when the work is over");
        loop {
            let reply = script.call("claim", json!({})).await;
            if let Some(code) = reply["error"]["code"].as_str() {
                assert_eq!(code, "none_ready");
                break;
            }
            let done = script.call(&finish, json!({"how": "done", "output": "it works"})).await;
            assert_eq!(done["task"]["status"], "completed", "{done}");
        }
        world.fleet.call(task::Cancel { task: first, ..task::Cancel::default() }).await.expect("cancelled");
        assert_eq!(script.call("claim", json!({})).await["error"]["code"], "board_finished");
    }
}
