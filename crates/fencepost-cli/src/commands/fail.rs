use super::{Held, duration};
use crate::{context::Context, keeper};
use clap::Args;
use fencepost::{Millis, Result, task};
use std::process::ExitCode;

/// Say that a task you hold cannot be done
///
/// Examples:
///   fence fail --reason "the grammar is ambiguous"
///   fence fail --retry --reason "the network is down" --delay 5m
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Fail {
    #[command(flatten)]
    held: Held,
    /// Whoever takes it next is told
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Try again after a while, if attempts are left
    #[arg(long)]
    retry: bool,
    /// How long to wait before that  [default: 10s, doubled with each attempt]
    #[arg(long, value_parser = duration, requires = "retry")]
    delay: Option<Millis>,
}

impl Fail {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = task::Fail {
            token: self.held.token(context).await?,
            reason: self.reason,
            retry: self.retry,
            delay_ms: self.delay,
        };
        let reply = context.call(op).await?;
        keeper::wake_all(context);
        context.print(&reply, |reply| crate::output::tasks::task(&reply.task, &context.terminal))
    }
}
