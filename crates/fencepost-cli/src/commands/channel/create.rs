use super::list::table;
use crate::context::Context;
use clap::Args;
use fencepost::{Result, channel};
use std::process::ExitCode;

/// Make a channel; one that is there already stays as it is
#[derive(Debug, Args)]
pub struct Create {
    /// Its name, such as general
    channel: String,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

impl Create {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = channel::Create { channel: self.channel, description: self.description };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| {
            let there = if reply.existing { "  (was there already)" } else { "" };
            table(std::slice::from_ref(&reply.channel), &context.terminal) + there
        })
    }
}
