use super::text;
use crate::context::Context;
use clap::Args;
use fencepost::{Result, mail};
use std::process::ExitCode;

/// Pause a mailbox: nobody can claim from it until it is resumed
///
/// Messages that are claimed already can be completed, and new messages can be pushed.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Pause {
    /// The mailbox, such as session/42
    mailbox: String,
    /// The reason, which refused claims show
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Pause {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(mail::Pause { mailbox: self.mailbox, reason: self.reason }).await?;
        context
            .print(&reply, |reply| text::mailboxes(std::slice::from_ref(&reply.mailbox), &context.terminal))
    }
}
