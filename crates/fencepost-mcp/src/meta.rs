//! The `_meta` of a call: which session it comes from, and an id that is the same if the call is repeated.

use rmcp::model::RequestMetaObject;
use sha2::{Digest, Sha256};

/// The fields in which clients name a session, best first: Codex sends both.
const SESSION: [&str; 2] = ["sessionId", "threadId"];

/// The fields in which clients number their calls: Claude Code, Codex.
const CALL: [&str; 2] = ["claudecode/toolUseId", "callId"];

/// The longest part of a session's id that goes into the name of its run.
const SESSION_MAX: usize = 100;

/// The longest part of a client's name that goes into the name of a run.
const PREFIX: usize = 20;

/// The run of the session that a call belongs to, with the name that shell commands of the same session act for.
pub fn session_run(client: &str, meta: &RequestMetaObject) -> Option<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '-' };
    let plain = |id: &str| id.chars().take(SESSION_MAX).map(plain).collect::<String>();
    let id = session(meta)?;
    let run = format!("{}-{}", prefix(client, meta), plain(id));
    // A thread of its own is a subagent of the session.
    let thread = text(meta, &SESSION[1..]).filter(|thread| *thread != id);
    Some(thread.map_or(run.clone(), |thread| format!("{run}.{}", plain(thread))))
}

fn session(meta: &RequestMetaObject) -> Option<&str> {
    text(meta, &SESSION)
}

/// A request id: the same for a repeated call, and another one for every other call. A client's id may be unique in its session
/// only, so session and run are a part of it.
pub fn request(meta: &RequestMetaObject, session: &str, run: &str) -> String {
    let id = text(meta, &CALL);
    let Some(id) = id else { return format!("mcp-{:032x}", fastrand::u128(..)) };
    let mut hash = Sha256::new();
    for part in [session, self::session(meta).unwrap_or_default(), run, id] {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    let hex: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("mcp-{hex}")
}

/// The prefix of a client's runs, by the name that it gives itself, or by its own fields in a call: over HTTP a call has no name.
/// It is the prefix that the client's shell commands have, too.
fn prefix(client: &str, meta: &RequestMetaObject) -> String {
    let client = client.to_ascii_lowercase();
    for (known, field) in [("codex", "x-codex-"), ("claude", "claudecode/")] {
        if client.starts_with(known) || meta.keys().any(|key| key.starts_with(field)) {
            return known.to_owned();
        }
    }
    let plain: String = client.chars().filter(char::is_ascii_alphanumeric).take(PREFIX).collect();
    // rmcp gives its own name to a client that has none.
    if ["", "rmcp"].contains(&plain.as_str()) { "mcp".to_owned() } else { plain }
}

fn text<'m>(meta: &'m RequestMetaObject, fields: &[&str]) -> Option<&'m str> {
    let values = fields.iter().filter_map(|field| meta.get(*field)?.as_str());
    values.into_iter().find(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn meta(value: serde_json::Value) -> RequestMetaObject {
        serde_json::from_value(value).expect("an object")
    }

    #[test]
    fn a_repeated_call_has_its_id_and_no_other_call_has_it() {
        let codex = meta(json!({"callId": "call_1", "sessionId": "s-1", "threadId": "t-1"}));
        let again = request(&codex, "codex-s-1", "codex-s-1");
        assert_eq!(again, request(&codex, "codex-s-1", "codex-s-1"));
        let others = [
            request(&codex, "codex-s-1", "a-subagent"),
            request(&codex, "another", "codex-s-1"),
            request(&meta(json!({"callId": "call_2", "sessionId": "s-1"})), "codex-s-1", "codex-s-1"),
            request(&meta(json!({"callId": "call_1", "sessionId": "s-2"})), "codex-s-1", "codex-s-1"),
            request(&meta(json!({"claudecode/toolUseId": "call_1"})), "codex-s-1", "codex-s-1"),
            request(&meta(json!({})), "codex-s-1", "codex-s-1"),
            request(&meta(json!({})), "codex-s-1", "codex-s-1"),
        ];
        let mut all: Vec<_> = others.iter().chain([&again]).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), others.len() + 1, "{others:?}");
    }

    #[test]
    fn runs_of_sessions_and_of_their_subagents() {
        for (value, run) in [
            (json!({"threadId": "s", "sessionId": "s"}), Some("codex-s")),
            (json!({"threadId": "t", "sessionId": "s"}), Some("codex-s.t")),
            (json!({"threadId": "t"}), Some("codex-t")),
            (json!({"sessionId": "a/b.c"}), Some("codex-a-b-c")),
            (json!({}), None),
        ] {
            assert_eq!(session_run("codex-mcp-client", &meta(value.clone())).as_deref(), run, "{value}");
        }
    }

    #[test]
    fn sessions_and_prefixes() {
        assert_eq!(session(&meta(json!({"threadId": "t", "sessionId": "s"}))), Some("s"));
        assert_eq!(session(&meta(json!({"threadId": "t", "sessionId": ""}))), Some("t"));
        assert_eq!(session(&meta(json!({"threadId": 7}))), None);
        for (client, expected) in [
            ("codex-mcp-client", "codex"),
            ("claude-code", "claude"),
            ("Cursor (VS Code)", "cursorvscode"),
            ("\u{202e}!", "mcp"),
            ("", "mcp"),
        ] {
            assert_eq!(prefix(client, &meta(json!({}))), expected, "{client}");
        }
        assert_eq!(prefix("rmcp", &meta(json!({}))), "mcp");
        assert_eq!(prefix("rmcp", &meta(json!({"x-codex-turn-metadata": {}}))), "codex");
    }
}
