use super::{
    super::{duration, wait_reason},
    text,
};
use crate::context::Context;
use clap::Args;
use fencepost::{Millis, Result, mail};
use std::process::ExitCode;

/// Take the next messages and complete them at the same time
///
/// Delivery is at most once: if you die, the messages are lost. Use it for work that may be lost and must not be done twice.
///
/// Examples:
///   fence mail take session/42 --count 100 --json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Take {
    /// Mailboxes, such as session/42
    #[arg(required = true, value_name = "MAILBOX")]
    mailboxes: Vec<String>,
    /// The most messages to take  [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    count: Option<i64>,
    /// If no message is ready, wait up to this long
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    wait: Option<Millis>,
}

impl Take {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = |wait_ms| mail::Take {
            mailboxes: self.mailboxes.clone(),
            count: self.count,
            wait_ms,
            request: context.request(),
        };
        let reply = match self.wait {
            None => context.call(op(None)).await?,
            wait => context.call_while_read(wait, op, wait_reason).await?,
        };
        context.print(&reply, |reply| {
            reply
                .messages
                .iter()
                .map(|message| text::page(message, &context.terminal))
                .collect::<Vec<_>>()
                .join("\n")
        })
    }
}
