use crate::context::Context;
use clap::Args;
use fencepost::{Result, channel};
use std::process::ExitCode;

/// Join a channel: all its posts become unread for your agent
#[derive(Debug, Args)]
pub struct Join {
    /// The channel
    channel: String,
}

impl Join {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = channel::Join { channel: self.channel, agent: context.required_agent()? };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| format!("{} is in {}", reply.agent, reply.channel))
    }
}
