use super::text;
use crate::{context::Context, keeper};
use clap::Args;
use fencepost::{
    Result,
    mail::{self, reset::WasReset},
};
use std::process::ExitCode;

/// Give back all claimed messages of this run, or of a mailbox
///
/// For a planned restart: the messages keep their positions, the attempts do not count, and their tokens become invalid.
///
/// Examples:
///   fence mail reset                       all messages of your run
///   fence --run worker-3 mail reset        all messages of another run
///   fence mail reset session/42 --reason "the worker hangs"      all messages of a mailbox
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Reset {
    /// All claimed messages of this mailbox, whoever holds them
    mailbox: Option<String>,
    /// Only messages that this run holds
    #[arg(long, requires = "mailbox")]
    mine: bool,
    /// The reason, for the log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Reset {
    /// Works in batches until nothing is left.
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let run = (self.mine || self.mailbox.is_none()).then(|| context.run());
        let op = mail::Reset { run, mailbox: self.mailbox, reason: self.reason };
        let mut sum = WasReset { reset: 0, more: true };
        while sum.more {
            let reply = context.call(op.clone()).await?;
            sum = WasReset { reset: sum.reset + reply.reset, more: reply.more && reply.reset > 0 };
        }
        keeper::wake_all(context);
        context.print(&sum, |sum| {
            format!("gave back {}", text::how_many(usize::try_from(sum.reset).unwrap_or(usize::MAX)))
        })
    }
}
