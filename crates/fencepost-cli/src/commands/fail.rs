use super::{Held, duration};
use crate::{context::Context, keeper, output::tasks};
use clap::Args;
use fencepost::{Millis, Result, task};
use std::process::ExitCode;

/// Report that a task you hold cannot be done
///
/// Examples:
///   fence fail --reason "the grammar is ambiguous"
///   fence fail --retry --reason "the network is down" --delay 5m
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Fail {
    #[command(flatten)]
    held: Held,
    /// The reason, which the next attempt gets
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Let it be tried again after a while, if attempts are left
    #[arg(long)]
    retry: bool,
    /// The time before the next attempt  [default: 10s, doubled with each attempt]
    #[arg(long, value_parser = duration, requires = "retry")]
    delay: Option<Millis>,
}

impl Fail {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let token = self.held.token(context).await?;
        let op = task::Fail { token, reason: self.reason, retry: self.retry, delay_ms: self.delay };
        let reply = context.call(op).await?;
        keeper::wake_all(context);
        context.print(&reply, |reply| tasks::task(&reply.task, &context.terminal))
    }
}
