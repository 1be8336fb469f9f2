use super::{super::duration, Held, text};
use crate::{context::Context, keeper};
use clap::Args;
use fencepost::{Millis, Result, mail};
use std::process::ExitCode;

/// Say that a message you hold cannot be processed
///
/// Examples:
///   fence mail fail message/7@1 --reason "it names no session"
///   fence mail fail message/7@1 --retry --reason "the model is overloaded" --delay 1m
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Fail {
    #[command(flatten)]
    held: Held,
    /// Whoever takes it next, or looks at what failed, is told
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Try again after a while, if attempts are left
    #[arg(long)]
    retry: bool,
    /// It was cut off in the middle: the mailbox says what becomes of it (`fence mail configure --replay`)
    #[arg(long)]
    lost: bool,
    /// How long to wait before that  [default: as the mailbox says, doubled with each attempt]
    #[arg(long, value_parser = duration, requires = "retry")]
    delay: Option<Millis>,
}

impl Fail {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = mail::Fail {
            token: self.held.token(context).await?,
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
