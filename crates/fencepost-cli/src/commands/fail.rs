use super::Held;
use crate::{context::Context, keeper};
use clap::Args;
use fencepost::{Result, task};
use std::process::ExitCode;

/// Say that a task you hold cannot be done
#[derive(Debug, Args)]
pub struct Fail {
    #[command(flatten)]
    held: Held,
    /// Whoever takes it next is told
    #[arg(long)]
    reason: String,
    /// Try again after a while, if attempts are left
    #[arg(long)]
    retry: bool,
}

impl Fail {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = task::Fail {
            token: self.held.token(context).await?,
            reason: self.reason,
            retry: self.retry,
            delay_ms: None,
        };
        let reply = context.call(op).await?;
        keeper::nudge(context);
        context.print(&reply, |reply| crate::text::task(&reply.task, &context.screen))
    }
}
