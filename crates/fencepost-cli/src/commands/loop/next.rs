use super::{duration, text};
use crate::{context::Context, output::streams};
use clap::Args;
use fencepost::{
    Code, Error, Millis, Result,
    loops::{self, next::Reason},
};
use std::process::ExitCode;

/// Claim the next story of a loop for this run, for a chain of your own
///
/// A run that holds a story gets it again. Exits with 4 if other chains hold all stories that could be done now, 3 if none is ready or
/// the loop is finished, 5 if it was cancelled; --json gives the reason.
///
/// Examples:
///   fence loop next auth-v1
///   fence loop next auth-v1 --wait 10m -q         prints the token only
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Next {
    #[arg(value_name = "LOOP")]
    id: String,
    /// Lease: others may claim the story if it is not renewed for this long. Every step renews it  [default: 30m]
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    ttl: Option<Millis>,
    /// If no story can be claimed yet, wait up to this long
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    wait: Option<Millis>,
    /// Print only the token
    #[arg(short, long)]
    quiet: bool,
}

impl Next {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = loops::Next {
            id: self.id.clone(),
            run: context.run(),
            agent: context.agent(),
            ttl_ms: self.ttl,
            wait_ms: None,
        };
        let reply = match self.wait {
            None => context.call(op).await?,
            Some(limit) => {
                let op = |wait_ms| loops::Next { wait_ms, ..op.clone() };
                context
                    .call_with_progress(Some(limit), op, |_| format!("a story of loop {}", self.id))
                    .await?
            }
        };
        context.remember(reply.claim.as_slice());
        let quiet = self.quiet && !context.json();
        match (&reply.claim, quiet) {
            (Some(claim), true) => streams::print(&claim.token)?,
            (None, _) if !context.json() => {}
            _ => {
                context.print(&reply, |reply| match (&reply.claim, &reply.story) {
                    (Some(claim), Some(story)) => {
                        let held = format!("{}  {}", claim.token, context.terminal.until(claim.expires_at));
                        format!("{held}\n{}", text::story(story))
                    }
                    _ => String::new(),
                })?;
            }
        }
        let Some(reason) = reply.reason else { return Ok(ExitCode::SUCCESS) };
        let code = code(reason);
        if !context.json() {
            // With --json the reply has told it.
            return Err(Error::new(code, reply.message.unwrap_or_default()));
        }
        Ok(ExitCode::from(code.exit_code()))
    }
}

/// The code that stands for the reason of an empty answer.
pub(super) fn code(reason: Reason) -> Code {
    match reason {
        Reason::AlreadyClaimed => Code::AlreadyClaimed,
        Reason::NoneReady => Code::NoneReady,
        Reason::Finished => Code::BoardFinished,
        Reason::Cancelled => Code::Cancelled,
    }
}
