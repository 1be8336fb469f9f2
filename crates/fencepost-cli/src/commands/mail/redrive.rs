use super::text;
use crate::context::Context;
use clap::Args;
use fencepost::{
    Result,
    mail::{self, redrive::Redriven},
};
use std::process::ExitCode;

/// Make failed or held messages pending again, with all their attempts
///
/// Examples:
///   fence mail redrive 7 12
///   fence mail redrive --mailbox session/42
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Redrive {
    /// The messages, such as 7
    #[arg(value_name = "ID", value_parser = super::number, required_unless_present = "mailbox")]
    messages: Vec<i64>,
    /// All failed and held messages of this mailbox
    #[arg(long, conflicts_with = "messages")]
    mailbox: Option<String>,
}

impl Redrive {
    /// Works in batches until nothing is left.
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = mail::Redrive { messages: self.messages, mailbox: self.mailbox };
        let mut sum = Redriven { messages: Vec::new(), more: true };
        while sum.more {
            let reply = context.call(op.clone()).await?;
            sum.more = reply.more && !reply.messages.is_empty();
            sum.messages.extend(reply.messages);
        }
        context.print(&sum, |sum| format!("{} pending again", text::how_many(sum.messages.len())))
    }
}
