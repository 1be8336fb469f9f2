//! The replies of a hook, in the form that Claude Code 2.1 and Codex 0.169 read.

use crate::{context::Context, output::streams};
use fencepost::Result;
use serde_json::{Value, json};
use std::process::ExitCode;

#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Nothing to say: the client goes on.
    Silent,
    /// The model is told this, in a reply to the event of this name.
    Tell(String, String),
    /// The tool is not called, and the model is told why.
    Deny(String),
    /// The tool is called with this input instead.
    Change(Value),
    /// The agent must not stop yet, and is told why.
    GoOn(String),
    /// An idle teammate is given this to do.
    Offer(String),
}

impl Reply {
    pub fn print(self, context: &Context) -> Result<ExitCode> {
        let (json, error) = self.parts();
        if let Some(json) = json {
            context.print_json(&json.to_string())?;
        }
        let Some(error) = error else { return Ok(ExitCode::SUCCESS) };
        // Codex lets a command pass if the hook exits 2 and writes nothing here.
        streams::print_error(&error);
        Ok(ExitCode::from(2))
    }

    /// Standard output, and standard error with exit 2. A denial is both: Claude Code shows its model the JSON, Codex the text. The
    /// shell around this program takes an exit 2 without output for a failure: a wrong command line ends so, too.
    fn parts(self) -> (Option<Value>, Option<String>) {
        let specific = |event: &str, name: &str, value: Value| {
            let mut fields = json!({ "hookEventName": event });
            fields[name] = value;
            json!({ "hookSpecificOutput": fields })
        };
        match self {
            Reply::Silent => (None, None),
            Reply::Tell(event, text) => (Some(specific(&event, "additionalContext", text.into())), None),
            Reply::Deny(reason) => {
                let mut denial = specific("PreToolUse", "permissionDecision", "deny".into());
                denial["hookSpecificOutput"]["permissionDecisionReason"] = reason.clone().into();
                (Some(denial), Some(reason))
            }
            Reply::Change(input) => (Some(specific("PreToolUse", "updatedInput", input)), None),
            Reply::GoOn(reason) => (Some(json!({ "decision": "block", "reason": reason })), None),
            Reply::Offer(text) => (Some(json!({ "decision": "block", "reason": text })), Some(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_as_clients_read_them() {
        let shown = |reply: Reply| {
            let (json, error) = reply.parts();
            format!("{} | {}", json.map_or(String::new(), |json| json.to_string()), error.unwrap_or_default())
        };
        for (reply, expected) in [
            (Reply::Silent, " | "),
            (
                Reply::Tell("SessionStart".into(), "hello".into()),
                r#"{"hookSpecificOutput":{"hookEventName":"SessionStart","additionalContext":"hello"}} | "#,
            ),
            (
                Reply::Deny("no".into()),
                r#"{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"deny","permissionDecisionReason":"no"}} | no"#,
            ),
            (
                Reply::Change(json!({ "command": "x" })),
                r#"{"hookSpecificOutput":{"hookEventName":"PreToolUse","updatedInput":{"command":"x"}}} | "#,
            ),
            (Reply::GoOn("finish".into()), r#"{"decision":"block","reason":"finish"} | "#),
            (Reply::Offer("auth-1".into()), r#"{"decision":"block","reason":"auth-1"} | auth-1"#),
        ] {
            assert_eq!(shown(reply), expected);
        }
    }
}
