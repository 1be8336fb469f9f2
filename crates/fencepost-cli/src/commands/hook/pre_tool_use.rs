//! Before a tool: a guarded command passes only while the session holds a live claim; a subagent acts for a run of its own.

use super::{
    Call,
    reply::Reply,
    rule::{self, Decision, Standing},
    session::{self, Session},
    soon, standing,
};
use crate::{guarded, settings::without_password};
use fencepost::{Code, Error, Result};
use std::sync::LazyLock;

/// Finds `fence` as a command, and not in the name of a file.
static FENCE: LazyLock<Option<guarded::Rules>> =
    LazyLock::new(|| guarded::Rules::parse(&["fence".into()]).ok());

impl Call<'_> {
    pub(super) async fn pre_tool_use(&self) -> Result<Reply> {
        if self.input.is_own_tool() {
            return Ok(self.with_run());
        }
        let Some(command) = self.input.command() else { return Ok(Reply::Silent) };
        let rules = match self.hook.rules() {
            Ok(rules) => rules,
            // A list that cannot be read blocks the commands of the built-in one.
            Err(error) => {
                let found = guarded::find(&command, &guarded::Rules::default());
                let wrong = |_| Reply::Deny(format!("fence: {}. A person can correct it", error.message()));
                return Ok(found.map_or_else(|| self.in_run(&command), wrong));
            }
        };
        let Some(found) = guarded::find(&command, &rules) else { return Ok(self.in_run(&command)) };
        let run = self.session_run();
        let remembered = session::read(&run);
        let lifted = remembered.is_lifted(self.context.terminal.now());
        let standing = match (self.has_fleet(), &remembered.fleet) {
            (true, _) => self.standing(&remembered).await.unwrap_or_else(Standing::Unknown),
            // The session's own fleet was removed, or it moved to a directory without one.
            (false, Some(fleet)) => {
                let fleet = without_password(fleet);
                Standing::Unknown(Error::new(
                    Code::NotFound,
                    format!(
                        "this directory has no fleet, and that of the session is at {fleet}: run the command there"
                    ),
                ))
            }
            // It never held a claim, and this is nobody's fleet.
            (false, None) if found.rule != rule::LIFT => return Ok(self.in_run(&command)),
            (false, None) => Standing::NeverClaimed,
        };
        let claims = match self.hook.mcp {
            true => "The tool `claim` takes a task.",
            false => "fence claim --keep takes a task.",
        };
        Ok(match rule::decide(&found, &run, &standing, lifted, self.hook.strict, claims) {
            Decision::Pass => self.in_run(&command),
            // The run of a subagent counts for more than a hint that its session gets, too.
            Decision::Tell(text) => match self.in_run(&command) {
                Reply::Silent => self.tell(text),
                change => change,
            },
            Decision::Deny(reason) => Reply::Deny(reason),
        })
    }

    /// A subagent may act under the claim of its session, too. A session that lost its claim in another fleet and went to a directory
    /// with this one can still push from here, so that it is asked there.
    async fn standing(&self, remembered: &Session) -> Result<Standing> {
        let here = self.context.location()?.absolute_url();
        let elsewhere = remembered.fleet.as_deref().filter(|_| remembered.is_elsewhere(&here));
        let held = if elsewhere.is_some() { &[][..] } else { &remembered.held };
        let standing_here = standing(&self.fleet().await?, &self.runs(), held).await?.0;
        match elsewhere {
            Some(fleet) if !matches!(standing_here, Standing::Holds) => {
                let there = soon(self.context.open_at(fleet)).await?.without_retries();
                Ok(standing(&there, &self.runs(), &remembered.held).await?.0)
            }
            _ => Ok(standing_here),
        }
    }

    /// Claude Code's subagents share the environment of their session: only its hooks can tell them apart. Codex gives each a
    /// variable.
    fn subagent(&self) -> Option<String> {
        let is_told_apart =
            self.hook.client == "claude" && self.input.agent_id.is_some() && !self.context.is_run_named();
        is_told_apart.then(|| self.run())
    }

    /// A call of our own tools by a subagent, with its run.
    fn with_run(&self) -> Reply {
        let Some(run) = self.subagent() else { return Reply::Silent };
        match &self.input.tool_input {
            Some(serde_json::Value::Object(input)) if !input.contains_key("run") => {
                let mut input = input.clone();
                input.insert("run".into(), run.into());
                Reply::Change(input.into())
            }
            _ => Reply::Silent,
        }
    }

    /// A command of a subagent that uses fence, with its run.
    fn in_run(&self, command: &str) -> Reply {
        let uses_fence =
            |_: &String| FENCE.as_ref().is_some_and(|rule| guarded::find(command, rule).is_some());
        let Some(run) = self.subagent().filter(uses_fence) else { return Reply::Silent };
        let Some(serde_json::Value::Object(input)) = &self.input.tool_input else { return Reply::Silent };
        let mut input = input.clone();
        // The run's name has only characters that need no quotes.
        input.insert("command".into(), format!("export FENCE_RUN={run}; {command}").into());
        Reply::Change(input.into())
    }
}
