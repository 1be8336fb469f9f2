use super::{Named, table};
use crate::context::Context;
use clap::Args;
use fencepost::{Result, agent};
use std::process::ExitCode;

/// Unregister an agent; tasks that wait for it go back to the pool
#[derive(Debug, Args)]
#[command(aliases = ["rm", "remove"])]
pub struct Leave {
    #[command(flatten)]
    named: Named,
    /// The reason, for the log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Leave {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply =
            context.call(agent::Leave { agent: self.named.name(context)?, reason: self.reason }).await?;
        context.print(&reply, |reply| table(std::slice::from_ref(&reply.agent), &context.terminal))
    }
}
