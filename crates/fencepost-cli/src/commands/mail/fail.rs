use super::{super::duration, Held, text};
use crate::{context::Context, keeper};
use clap::Args;
use fencepost::{Millis, Result, mail};
use std::process::ExitCode;

/// Report that a message you hold cannot be processed
///
/// Examples:
///   fence mail fail message/7@1 --reason "it names no session"
///   fence mail fail message/7@1 --retry --reason "the model is overloaded" --delay 1m
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Fail {
    #[command(flatten)]
    held: Held,
    /// The reason, which is kept with the message
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Let it be tried again after a while, if attempts are left
    #[arg(long)]
    retry: bool,
    /// The work was interrupted: apply the replay policy of the mailbox (`fence mail configure --replay`)
    #[arg(long)]
    lost: bool,
    /// The time before the next attempt  [default: the mailbox's backoff, doubled with each attempt]
    #[arg(long, value_parser = duration, requires = "retry")]
    delay: Option<Millis>,
}

impl Fail {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let token = self.held.token(context).await?;
        let op = mail::Fail {
            token,
            reason: self.reason,
            retry: self.retry,
            lost: self.lost,
            stopped: false,
            delay_ms: self.delay,
        };
        let reply = context.call(op).await?;
        keeper::wake_all(context);
        context.print(&reply, |reply| text::message(&reply.message, &context.terminal))
    }
}
