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
    let input = parse(&text).or_else(|| parse(&without_lone_surrogates(&text)));
    input.filter(|_| !is_too_large).ok_or(Unread { text, is_too_large })
}

fn parse(text: &str) -> Option<Input> {
    // serde would also read a list as the fields in their order.
    let input: Input = serde_json::from_str(text).ok().filter(|_| text.trim_start().starts_with('{'))?;
    let filled = |field: Option<String>| field.filter(|text| !text.trim().is_empty());
    Some(Input { session_id: filled(input.session_id), agent_id: filled(input.agent_id), ..input })
}

/// JavaScript writes half of a pair as an escape, `\ud83d`, which is no text. Without this, such an event could not be read.
fn without_lone_surrogates(json: &str) -> String {
    let unit = |text: &str| u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok();
    let (mut whole, mut rest) = (String::with_capacity(json.len()), json);
    while let Some(at) = rest.find('\\') {
        let escape = &rest[at..];
        let (shown, length) = match (unit(escape), escape.get(6..).and_then(unit)) {
            (Some(0xD800..0xDC00), Some(0xDC00..0xE000)) => (&escape[..12], 12),
            (Some(0xD800..0xE000), _) => ("\\ufffd", 6),
            _ => escape.get(..2).map_or((escape, escape.len()), |escape| (escape, 2)),
        };
        whole.push_str(&rest[..at]);
        whole.push_str(shown);
        rest = &escape[length..];
    }
    whole + rest
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
    /// The reply to an event that cannot be read: nobody can tell which session it is of, and what it does. Where no fleet is, it is
    /// blocked if a guarded command may be in it.
    pub fn reply(&self, rules: &guarded::Rules, has_fleet: bool) -> Reply {
        if self.is_too_large {
            return Reply::Deny(rule::too_large(INPUT_MAX));
        }
        match rules.named_in(&self.text) {
            None if !has_fleet => Reply::Silent,
            found => Reply::Deny(rule::unreadable(found.as_ref())),
        }
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
    fn halves_of_pairs_are_replaced() {
        for (json, expected) in [
            (r"a\ud83d\ude00b", r"a\ud83d\ude00b"),
            (r"a\ud83db\n", r"a\ufffdb\n"),
            (r"\ude00\ud83d", r"\ufffd\ufffd"),
            (r"\ud83d\ud83d\ude00", r"\ufffd\ud83d\ude00"),
            // A backslash, and no escape.
            (r"\\ud83d \\\ud83d", r"\\ud83d \\\ufffd"),
            (r"\u0067it \uD83", r"\u0067it \uD83"),
            ("\\", "\\"),
            ("\\é", "\\é"),
        ] {
            assert_eq!(without_lone_surrogates(json), expected);
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
