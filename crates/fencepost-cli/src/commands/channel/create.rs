use super::list::table;
use crate::context::Context;
use clap::Args;
use fencepost::{Result, channel};
use std::process::ExitCode;

/// Create a channel; an existing one stays as it is
#[derive(Debug, Args)]
pub struct Create {
    /// The name, such as general
    channel: String,
    /// The purpose of the channel
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

impl Create {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = channel::Create { channel: self.channel, description: self.description };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| {
            let existing = if reply.existing { "  (existed already)" } else { "" };
            table(std::slice::from_ref(&reply.channel), &context.terminal) + existing
        })
    }
}
