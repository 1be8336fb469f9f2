//! Before a tool: the rule decides by the session's own record. The fleet is asked for a guarded command, after a loss, and after the end
//! of a lease.

use super::{
    Call,
    refresh::refreshed,
    reply::Reply,
    rule::{self, Decision, Question},
    tool::{Tool, is_ack, plain_fence},
};
use crate::{
    guarded::{self, Found},
    session::{self, Known, Session, Standing},
    settings::without_password,
};
use fencepost::{Code, Error, Result, Token, claim};
use serde_json::Value;
use std::sync::LazyLock;

/// Commands that act for a run: `fence`, and those of git that call its hooks. Not the name of a file.
static FENCE: LazyLock<Option<guarded::Rules>> = LazyLock::new(|| guarded::Rules::parse(&["fence"]).ok());
static GIT: LazyLock<Option<guarded::Rules>> = LazyLock::new(|| guarded::Rules::parse(&[GIT_HOOKED]).ok());
const GIT_HOOKED: &str = "git am|cherry-pick|commit|merge|pull|push|rebase|revert";

impl Call<'_> {
    /// It never fails: a hook that says nothing lets the tool pass.
    pub(super) async fn pre_tool_use(&self) -> Reply {
        let tool = Tool::of(&self.input, &self.hook.reads);
        let line = match &tool {
            Tool::Own => {
                let is_finish =
                    self.input.tool_name.as_deref().is_some_and(|name| name.ends_with("__finish"));
                let how = self.input.tool_input.as_ref().and_then(|input| input.get("how"));
                if is_finish && how.is_some_and(|how| how == "acknowledge") {
                    self.acknowledge();
                }
                return self.with_run();
            }
            Tool::Reads => return Reply::Silent,
            Tool::Shell(line) => Some(line.as_str()),
            Tool::Unknown(_) | Tool::Writes => None,
        };
        let passes = || line.map_or(Reply::Silent, |line| self.in_run(line));
        let found = match self.find(&tool) {
            Ok(found) => found,
            Err(refused) => return refused,
        };
        let plain = line.and_then(plain_fence);
        if let Some(words) = plain.filter(|_| found.is_none()) {
            if is_ack(&words) {
                self.acknowledge();
            }
            return passes();
        }
        let now = self.context.terminal.now();
        let Known { run, session: mut record, is_lifted } = session::known(&self.runs(), now);
        let is_in_doubt = found.is_some() || record.is_in_doubt(now);
        let unknown =
            if is_in_doubt { self.ask(&run, &mut record, found.is_some()).await.err() } else { None };
        // It never held a claim, and this is nobody's fleet.
        if record.is_blank()
            && !self.has_fleet()
            && found.as_ref().is_none_or(|found| found.rule != rule::LIFT)
        {
            return passes();
        }
        if let Some(error) = &unknown {
            record = session::unanswered(&run, error, now);
        }
        let standing = record.standing(now);
        let holder = match &standing {
            Standing::Lost(_) | Standing::LostOne(_) => self.holder(&record).await,
            _ => String::new(),
        };
        let question = Question {
            found: found.as_ref(),
            session: &self.session_run(),
            standing: &standing,
            unknown: unknown.as_ref(),
            is_lifted,
            is_strict: self.hook.strict,
            by_mcp: self.hook.mcp,
            holder: &holder,
        };
        match rule::decide(&question) {
            Decision::Pass => passes(),
            // The run of a subagent counts for more than a hint that its session gets, too.
            Decision::Tell(text) => match passes() {
                Reply::Silent => self.tell(text),
                change => change,
            },
            Decision::Deny(reason) => Reply::Deny(reason),
        }
    }

    /// Asks the session's fleets, and reads the record anew. `guarded`: a guarded command needs a claim that some fleet confirmed.
    async fn ask(&self, run: &str, record: &mut Session, guarded: bool) -> Result<()> {
        *record = refreshed(self.context, run, self.deadline).await?;
        let here = self.context.location()?.absolute_url();
        match guarded && !self.has_fleet() && record.held.iter().any(|held| held.fleet == here) {
            true => Err(Error::new(
                Code::NotFound,
                format!("the fleet of its claim, {}, is gone", without_password(&here)),
            )),
            false => Ok(()),
        }
    }

    /// Who holds the work now that the session lost last, if the fleet answers.
    async fn holder(&self, record: &Session) -> String {
        let Some(lost) = record.lost.last() else { return String::new() };
        let task = lost.token.parse::<Token>().map_or(lost.token.clone(), |token| token.resource.to_string());
        let asked = async {
            let fleet = self.deadline.open(self.context.open_elsewhere(&lost.fleet)).await?;
            fleet.call(claim::Guard::new(&lost.token)).await
        };
        let is_silent = record.is_silent(self.context.terminal.now());
        let answer = if is_silent { None } else { asked.await.ok() };
        match answer.filter(|guarded| !guarded.ok).map(|guarded| guarded.claim) {
            Some(Some(claim)) => {
                let agent = claim.agent.map_or(String::new(), |agent| format!(" (agent {agent})"));
                format!("Run {}{agent} holds {task} now.", claim.run)
            }
            Some(None) => format!("Nobody holds {task} now."),
            None => String::new(),
        }
    }

    /// The agent acknowledges the losses of the run that this event is about: a subagent does not do that for its session, unless it shares
    /// its standing. The hook records it, because a command in a client's sandbox cannot write the record.
    fn acknowledge(&self) {
        let now = self.context.terminal.now();
        // The command itself says whether that worked.
        let _ = session::acknowledge(&session::known(&self.runs(), now).run, now);
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
            Some(Value::Object(input)) if !input.contains_key("run") => {
                let mut input = input.clone();
                input.insert("run".into(), run.into());
                Reply::Change(input.into())
            }
            _ => Reply::Silent,
        }
    }

    /// A command of a subagent that uses fence, with its run. The hooks of git need the run as well, if the subagent stands for itself.
    fn in_run(&self, command: &str) -> Reply {
        let names = |rules: &Option<guarded::Rules>| {
            rules.as_ref().is_some_and(|rules| guarded::find(command, rules).is_some())
        };
        let acts = |run: &String| names(&FENCE) || names(&GIT) && !session::read(run).is_blank();
        let Some(run) = self.subagent().filter(acts) else { return Reply::Silent };
        let Some(Value::Object(input)) = &self.input.tool_input else { return Reply::Silent };
        let mut input = input.clone();
        // The run's name has only characters that need no quotes.
        input.insert("command".into(), format!("export FENCE_RUN={run}; {command}").into());
        Reply::Change(input.into())
    }

    /// The guarded command that the tool names. A list that cannot be read blocks the commands of the built-in one.
    fn find(&self, tool: &Tool) -> Result<Option<Found>, Reply> {
        let find = |rules: &guarded::Rules| match tool {
            Tool::Shell(line) => guarded::find(line, rules),
            Tool::Unknown(text) => rules.named_in(text),
            Tool::Own | Tool::Writes | Tool::Reads => None,
        };
        if matches!(tool, Tool::Writes) {
            return Ok(None);
        }
        let wrong =
            |error: Error| Reply::Deny(format!("fence: {}. A person can correct it", error.message()));
        match self.hook.rules() {
            Ok(rules) => Ok(find(&rules)),
            Err(error) => find(&guarded::Rules::default()).map_or(Ok(None), |_| Err(wrong(error))),
        }
    }
}
