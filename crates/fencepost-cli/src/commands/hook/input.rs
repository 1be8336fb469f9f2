//! The event that a client gives to a hook. Clients add fields with every version, so unknown ones are ignored.

use super::{reply::Reply, rule};
use crate::guarded;
use serde::Deserialize;
use serde_json::Value;
use std::io::Read;

/// The largest input. A result of a tool may be long.
const INPUT_MAX: u64 = 16 * 1024 * 1024;

#[derive(Debug, Clone, Default, Deserialize)]
pub struct Input {
    /// The client's name of the event. One hook may serve two of them.
    #[serde(default)]
    pub hook_event_name: Option<String>,
    #[serde(default)]
    pub session_id: Option<String>,
    /// Set if the event is of a subagent.
    #[serde(default)]
    pub agent_id: Option<String>,
    #[serde(default)]
    pub tool_name: Option<String>,
    #[serde(default)]
    pub tool_input: Option<Value>,
    /// A hook refused this stop before.
    #[serde(default)]
    pub stop_hook_active: bool,
    /// Why a session ends.
    #[serde(default)]
    pub reason: Option<String>,
}

/// An input that is no event, or too large to be read.
#[derive(Debug)]
pub struct Unread {
    text: String,
    is_too_large: bool,
}

/// Reads the event from standard input.
pub fn read() -> Result<Input, Unread> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().take(INPUT_MAX + 1).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let is_too_large = read.is_err() || bytes.len() as u64 > INPUT_MAX;
    parse(&text).filter(|_| !is_too_large).ok_or(Unread { text, is_too_large })
}

fn parse(text: &str) -> Option<Input> {
    // serde would also read a list as the fields in their order.
    let input: Input = serde_json::from_str(text).ok().filter(|_| text.trim_start().starts_with('{'))?;
    let filled = |field: Option<String>| field.filter(|text| !text.trim().is_empty());
    Some(Input { session_id: filled(input.session_id), agent_id: filled(input.agent_id), ..input })
}

impl Input {
    /// Is the tool one of `fence mcp`, also if a plugin brought the server?
    pub fn is_own_tool(&self) -> bool {
        let server = self.tool_name.as_deref().and_then(|name| name.strip_prefix("mcp__"));
        server.and_then(|rest| rest.split_once("__")).is_some_and(|(server, _)| {
            server == "fence" || (server.starts_with("plugin_") && server.ends_with("_fence"))
        })
    }
}

impl Unread {
    /// The reply to an event that cannot be read: blocked if a guarded command may be in it.
    pub fn reply(&self, rules: &guarded::Rules) -> Reply {
        if self.is_too_large {
            return Reply::Deny(rule::too_large(INPUT_MAX));
        }
        let found = rules.named_in(&self.text);
        found.map_or(Reply::Silent, |found| Reply::Deny(rule::unreadable(&found.command)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn input(value: Value) -> Input {
        parse(&value.to_string()).expect("an event")
    }

    #[test]
    fn tools_of_our_own() {
        for (name, expected) in [
            ("mcp__fence__claim", true),
            ("mcp__plugin_fence_fence__claim", true),
            ("mcp__fencepost__claim", false),
            ("mcp__other__fence", false),
            ("Bash", false),
        ] {
            assert_eq!(input(json!({ "tool_name": name })).is_own_tool(), expected, "{name}");
        }
    }

    #[test]
    fn inputs_that_are_no_event() {
        for text in
            ["", "null", "[]", "{", "{\"session_id\": 7}", "git push", "{\"stop_hook_active\": \"x\"}"]
        {
            assert!(parse(text).is_none(), "{text}");
        }
        assert_eq!(input(json!({ "session_id": " ", "agent_id": "" })).session_id, None);
    }
}
