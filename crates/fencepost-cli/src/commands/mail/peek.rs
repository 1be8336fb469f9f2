use super::text;
use crate::context::Context;
use clap::Args;
use fencepost::{Result, mail};
use std::process::ExitCode;

/// Show the messages that would be claimed next, without claiming them
#[derive(Debug, Args)]
pub struct Peek {
    /// The mailbox, such as session/42
    mailbox: String,
    /// The most messages to show  [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    count: Option<i64>,
}

impl Peek {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(mail::Peek { mailbox: self.mailbox, count: self.count }).await?;
        context.print(&reply, |reply| match reply.messages.as_slice() {
            [] => "nothing is ready".into(),
            messages => messages
                .iter()
                .map(|message| text::page(message, &context.terminal))
                .collect::<Vec<_>>()
                .join("\n"),
        })
    }
}
