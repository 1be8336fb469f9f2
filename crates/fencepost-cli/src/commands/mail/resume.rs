use super::text;
use crate::context::Context;
use clap::Args;
use fencepost::{Result, mail};
use std::process::ExitCode;

/// Resume a paused mailbox
#[derive(Debug, Args)]
pub struct Resume {
    /// The mailbox, such as session/42
    mailbox: String,
}

impl Resume {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(mail::Resume { mailbox: self.mailbox }).await?;
        context
            .print(&reply, |reply| text::mailboxes(std::slice::from_ref(&reply.mailbox), &context.terminal))
    }
}
