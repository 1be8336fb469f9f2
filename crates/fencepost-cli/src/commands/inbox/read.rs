use super::{Which, text};
use crate::context::Context;
use clap::Args;
use fencepost::{Result, inbox};
use std::process::ExitCode;

/// Mark a message as read: it needs no answer
#[derive(Debug, Args)]
pub struct Read {
    #[command(flatten)]
    which: Which,
}

impl Read {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(inbox::Read { message: self.which.message(context).await? }).await?;
        context.print(&reply, |reply| text::item(&reply.item, &context.terminal))
    }
}
