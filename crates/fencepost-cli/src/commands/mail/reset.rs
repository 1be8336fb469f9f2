use super::text;
use crate::{context::Context, keeper};
use clap::Args;
use fencepost::{
    Result,
    mail::{self, reset::WasReset},
};
use std::process::ExitCode;

/// Give back at once all the messages that this run holds, or that are held in a mailbox
///
/// For a restart that is meant: they keep their places, the attempts do not count, and their tokens are dead.
///
/// Examples:
///   fence mail reset                       what this run holds
///   fence --run worker-3 mail reset        what another holds
///   fence mail reset session/42 --reason "the worker hangs"      what anyone holds in it
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Reset {
    /// What is held in this mailbox, by whomever
    mailbox: Option<String>,
    /// Only what this run holds in it
    #[arg(long, requires = "mailbox")]
    mine: bool,
    /// Why; it is kept in the log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Reset {
    /// In batches, until nothing is left.
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
