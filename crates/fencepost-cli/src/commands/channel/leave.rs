use crate::context::Context;
use clap::Args;
use fencepost::{Result, channel};
use std::process::ExitCode;

/// Leave a channel; mentions still reach your agent
#[derive(Debug, Args)]
pub struct Leave {
    /// The channel
    channel: String,
}

impl Leave {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = channel::Leave { channel: self.channel, agent: context.required_agent()? };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| format!("{} has left {}", reply.agent, reply.channel))
    }
}
