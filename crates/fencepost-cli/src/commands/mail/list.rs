use super::{super::one_of, text};
use crate::context::Context;
use clap::Args;
use fencepost::{Result, mail, mail::State};
use std::process::ExitCode;

/// List messages, oldest first
///
/// Examples:
///   fence mail list session/42
///   fence mail list --status failed        list failed messages of all mailboxes
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, alias = "ls")]
pub struct List {
    /// Only messages of this mailbox
    mailbox: Option<String>,
    /// Only messages in this state: pending, delayed, processing, processed, failed or held
    #[arg(long)]
    status: Option<String>,
    /// Start after this message, the last one of the previous page
    #[arg(long, value_name = "ID", value_parser = super::number, alias = "after")]
    start_after: Option<i64>,
    /// The most messages to show  [default: 100]
    #[arg(long)]
    limit: Option<i64>,
}

impl List {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let status = self.status.as_deref();
        let status = status.map(|text| one_of("status", &State::ALL, State::as_str, text)).transpose()?;
        let op = mail::List { mailbox: self.mailbox, status, after: self.start_after, limit: self.limit };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| match reply.messages.as_slice() {
            [] => "no messages".into(),
            messages => {
                let last = messages.last().map_or(0, |message| message.id);
                let more = reply
                    .more
                    .then(|| format!("\n{}", context.terminal.and_more(&format!("--start-after {last}"))));
                text::messages(messages, &context.terminal) + &more.unwrap_or_default()
            }
        })
    }
}
