use super::text;
use crate::context::Context;
use clap::Args;
use fencepost::{Code, Error, Result, mail};
use std::process::ExitCode;

/// Show the mailboxes with their counts, or one mailbox with its settings
#[derive(Debug, Default, Args)]
pub struct Stats {
    /// Only this mailbox, with its settings
    mailbox: Option<String>,
    /// Start after this mailbox, the last one of the previous page
    #[arg(long, value_name = "MAILBOX", conflicts_with = "mailbox", alias = "after")]
    start_after: Option<String>,
    /// The most mailboxes to show  [default: 100]
    #[arg(long, conflicts_with = "mailbox")]
    limit: Option<i64>,
}

impl Stats {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = mail::Stats { mailbox: self.mailbox.clone(), after: self.start_after, limit: self.limit };
        let reply = context.call(op).await?;
        if let (Some(name), []) = (&self.mailbox, reply.mailboxes.as_slice()) {
            return Err(Error::new(Code::NotFound, format!("there is no mailbox `{name}`"))
                .hint("fence mail push creates it with its first message; fence mail lists the mailboxes"));
        }
        context.print(&reply, |reply| match (&self.mailbox, reply.mailboxes.as_slice()) {
            (Some(_), [mailbox]) => text::mailbox(mailbox, &context.terminal),
            (_, []) => "no mailboxes: fence mail push creates one".into(),
            (_, mailboxes) => {
                let last = mailboxes.last().map_or("", |mailbox| &mailbox.name);
                let more = reply.more.then(|| {
                    format!(
                        "\n{}",
                        context.terminal.and_more(&format!("fence mail stats --start-after {last}"))
                    )
                });
                text::mailboxes(mailboxes, &context.terminal) + &more.unwrap_or_default()
            }
        })
    }
}
