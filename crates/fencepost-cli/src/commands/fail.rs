use crate::context::Context;
use clap::Args;
use fencepost::{Result, task};
use std::process::ExitCode;

/// Say that a task you hold cannot be done
#[derive(Debug, Args)]
pub struct Fail {
    #[arg(env = "FENCE_CLAIM")]
    token: String,
    /// Whoever takes it next is told
    #[arg(long)]
    reason: String,
    /// Try again after a while, if attempts are left
    #[arg(long)]
    retry: bool,
}

impl Fail {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = task::Fail { token: self.token, reason: self.reason, retry: self.retry, delay_ms: None };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| super::line(&reply.task))
    }
}
