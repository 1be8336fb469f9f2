//! The hooks of agents' clients. A client starts `fence hook EVENT` and gives it JSON on standard input; the reply is JSON on
//! standard output, in the form that Claude Code and Codex read.
//!
//! Only `pre-tool-use` can block a tool. It blocks all that write or run while the session has lost its claim, and a guarded command
//! whenever it cannot tell that the session may run it. The other events never fail: a client would show the error to its user at
//! every step.

mod input;
mod post_tool_use;
mod pre_tool_use;
mod refresh;
mod reply;
mod rule;
mod session_end;
mod session_start;
mod stop;
mod teammate_idle;
mod tool;
mod user_prompt_submit;

use crate::{
    context::Context,
    guarded,
    output::untrusted,
    session::{Deadline, Fleet},
};
use clap::{Args, ValueEnum};
use fencepost::{Code, Error, Result, claim};
pub use input::Input;
pub use refresh::refreshed;
use reply::Reply;
use std::process::ExitCode;

/// Answer a hook of Claude Code or Codex: `fence setup` installs it
///
/// The client gives the event as JSON on standard input. While the session has a lost claim that it has not acknowledged (fence ack), all
/// tools that write or run are blocked. Otherwise a command on the guarded list passes under a live claim. It is blocked if the session gave
/// its work back; a session that completed its claim or never claimed is told, and not blocked. If the fleet does not answer within 8 seconds (FENCE_HOOK_TIMEOUT), guarded commands are blocked. A person lifts
/// the guard of a session with fence lift.
///
/// Examples:
///   fence hook pre-tool-use --client claude <event.json
///   fence hook session-start --client codex --mcp <event.json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Hook {
    /// The event
    #[arg(value_name = "EVENT")]
    event: Option<Event>,
    /// The client, by which the session's run is named: claude-7f3a
    #[arg(long, value_name = "NAME", default_value = "claude")]
    client: String,
    /// The session uses the tools of fence mcp: name them in hints
    #[arg(long)]
    mcp: bool,
    /// Also block guarded commands of sessions that never claimed or completed their claim, and guard git commit
    #[arg(long, env = "FENCE_HOOK_STRICT", hide_env_values = true, value_parser = clap::builder::FalseyValueParser::new())]
    strict: bool,
    /// A guarded command, such as "kubectl apply|delete"; replaces the built-in list
    #[arg(
        long,
        value_name = "COMMAND",
        env = "FENCE_HOOK_GUARD",
        hide_env_values = true,
        value_delimiter = ','
    )]
    guard: Vec<String>,
    /// A tool of another MCP server that only reads, such as "mcp__github__get_*"; it passes also after a lost claim
    #[arg(
        long,
        value_name = "TOOL",
        env = "FENCE_HOOK_READS",
        hide_env_values = true,
        value_delimiter = ','
    )]
    reads: Vec<String>,
    /// Show only tasks of this board
    #[arg(long)]
    board: Option<String>,
}

/// The events that a hook is called for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Event {
    SessionStart,
    UserPromptSubmit,
    PreToolUse,
    PostToolUse,
    Stop,
    SubagentStop,
    SessionEnd,
    TeammateIdle,
}

impl Hook {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let event = self.event.ok_or_else(|| {
            Error::new(Code::Invalid, "name the event").hint("fence hook --help lists the events")
        })?;
        let reply = match input::read() {
            Ok(input) => {
                Call { hook: &self, input, context, deadline: Deadline::from_now() }.answer(event).await
            }
            Err(unread) if event == Event::PreToolUse => unread.reply(&self.rules()?, has_fleet(context)),
            Err(_) => Reply::Silent,
        };
        reply.print(context)
    }

    /// The guarded list. A list that cannot be read is an error: the shell around this program blocks then.
    fn rules(&self) -> Result<guarded::Rules> {
        let own = self.guard.iter().map(String::as_str).filter(|rule| !rule.trim().is_empty());
        let own: Vec<&str> = own.collect();
        let mut rules = if own.is_empty() { guarded::DEFAULT.to_vec() } else { own };
        if self.strict {
            rules.push("git commit");
        }
        rules.push(rule::LIFT);
        guarded::Rules::parse(&rules).map_err(|problem| {
            Error::new(Code::Invalid, format!("the guarded list is wrong: {problem}")).with("field", "guard")
        })
    }
}

/// One call of a hook.
struct Call<'a> {
    hook: &'a Hook,
    input: Input,
    context: &'a Context,
    deadline: Deadline,
}

impl Call<'_> {
    async fn answer(&self, event: Event) -> Reply {
        let reply = async {
            match event {
                Event::PreToolUse => Ok(self.pre_tool_use().await),
                // Without a fleet there is nothing to say.
                _ if !self.has_fleet() => Ok(Reply::Silent),
                Event::SessionStart => self.session_start().await,
                Event::UserPromptSubmit => self.user_prompt_submit().await,
                Event::PostToolUse => self.post_tool_use().await,
                Event::Stop | Event::SubagentStop => self.stop(event).await,
                Event::SessionEnd => self.session_end().await,
                Event::TeammateIdle => self.teammate_idle().await,
            }
        };
        reply.await.unwrap_or(Reply::Silent)
    }

    fn has_fleet(&self) -> bool {
        has_fleet(self.context)
    }

    /// A text for the model.
    fn tell(&self, text: String) -> Reply {
        Reply::Tell(self.input.hook_event_name.clone().unwrap_or_default(), text)
    }

    async fn fleet(&self) -> Result<Fleet> {
        self.deadline.open(self.context.open(self.context.agent())).await
    }

    /// The run of the session.
    fn session_run(&self) -> String {
        match &self.input.session_id {
            Some(session) if !self.context.is_run_named() => {
                crate::identity::agent_run(&self.hook.client, session)
            }
            _ => self.context.run(),
        }
    }

    /// The run that the event is about: the session's, or its subagent's.
    fn run(&self) -> String {
        match &self.input.agent_id {
            Some(agent) if !self.context.is_run_named() => {
                crate::identity::subagent_run(&self.session_run(), agent)
            }
            _ => self.session_run(),
        }
    }

    /// The run of the event, and that of its session.
    fn runs(&self) -> Vec<String> {
        let (run, session) = (self.run(), self.session_run());
        if run == session { vec![run] } else { vec![run, session] }
    }
}

/// Does the session's repository have a fleet? If nobody can tell, it does.
fn has_fleet(context: &Context) -> bool {
    context.location().map_or(true, |location| location.is_there())
}

/// The claims of these runs. Locks and effects are not work.
async fn claims(fleet: &Fleet, runs: &[String]) -> Result<Vec<claim::Claim>> {
    let mut claims = Vec::new();
    for run in runs {
        let list = claim::List { run: Some(run.clone()), limit: None };
        claims.extend(fleet.call(list).await?.claims);
    }
    claims.retain(|claim| !claim.resource.starts_with("lock/") && !claim.resource.starts_with("once/"));
    Ok(claims)
}

/// The claim of this token, if it is alive.
async fn alive(fleet: &Fleet, token: &str) -> Result<Option<claim::Claim>> {
    let guarded = fleet.call(claim::Guard::new(token)).await?;
    Ok(guarded.claim.filter(|_| guarded.ok))
}

/// The tokens of claims, in one line.
fn tokens(claims: &[claim::Claim]) -> String {
    claims.iter().map(|claim| claim.token.as_str()).collect::<Vec<_>>().join(", ")
}

/// A text of somebody else in one line, in quotes. Characters that could forge a line of ours are shown as escapes.
fn quoted(text: &str) -> String {
    let line = untrusted::in_a_line(text);
    let cut: String = line.chars().take(120).collect();
    let dots = if cut.len() < line.len() { "…" } else { "" };
    format!("\"{}{dots}\"", cut.replace('"', "'"))
}
