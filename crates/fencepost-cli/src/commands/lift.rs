use super::{check_person, duration};
use crate::{context::Context, session};
use clap::Args;
use fencepost::{Code, Error, Millis, Result, Time, run};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

/// Let a client's session run guarded commands without a claim, for a time
///
/// It also acknowledges for the session that it lost a claim, so that it may write again.
///
/// For a person, in a terminal: an agent's session is refused, and so is an agent's key. The session is on this machine; its run is named in
/// the message of the hook that blocked the command. The log of the fleet records it, if the fleet can be reached.
///
/// Examples:
///   fence lift claude-7f3a
///   fence lift codex-91c2 --for 1h --reason "hotfix, the server is down"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Lift {
    /// The run of the session
    #[arg(value_name = "RUN")]
    session: String,
    /// How long, at most a day; 0s ends it now
    #[arg(long = "for", value_parser = duration, value_name = "DURATION", default_value = "10m")]
    span: Millis,
    /// The reason, which is logged
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Reply {
    run: String,
    until: Time,
    /// The fleet has it in its log.
    logged: bool,
}

impl Lift {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        check_person("lifts the guard")?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || "._-:/".contains(c);
        if self.session.is_empty() || !self.session.chars().all(is_name) {
            return Err(Error::invalid("run", "is not the name of a run, such as claude-7f3a").hint(
                "the message of the hook that blocked the command names it; fence runs --all lists runs",
            ));
        }
        let now = context.terminal.now();
        let until = now.plus(self.span);
        let lift =
            run::Lift { run: self.session.clone(), for_ms: Some(self.span), reason: self.reason.clone() };
        let logged = match context.call(lift).await {
            // A fleet that is gone must not keep a person from lifting the guard.
            Err(error) if error.is_transient() || error.code() == Code::NotFound => {
                context
                    .warn(&Error::new(error.code(), format!("not in the fleet's log: {}", error.message())));
                false
            }
            answer => answer.map(|_| true)?,
        };
        session::lift(&self.session, session::Lift { until, reason: self.reason }, now)?;
        let reply = Reply { run: self.session, until, logged };
        context.print(&reply, |reply| match self.span {
            Millis(0) => format!("run {} is guarded again", reply.run),
            _ => {
                format!("run {} may run guarded commands {}", reply.run, context.terminal.until(reply.until))
            }
        })
    }
}
