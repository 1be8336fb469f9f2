use super::text;
use crate::context::Context;
use clap::Args;
use fencepost::{Code, Error, Result, mail};
use std::process::ExitCode;

/// Show the mailboxes with how many messages are in which state, or one and how it works
#[derive(Debug, Default, Args)]
pub struct Stats {
    /// Only this one, with its settings
    mailbox: Option<String>,
    /// Only what comes after this name: the last of the page before
    #[arg(long, value_name = "MAILBOX", conflicts_with = "mailbox", alias = "after")]
    start_after: Option<String>,
    /// At most this many  [default: 100]
    #[arg(long, conflicts_with = "mailbox")]
    limit: Option<i64>,
}

impl Stats {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = mail::Stats { mailbox: self.mailbox.clone(), after: self.start_after, limit: self.limit };
        let reply = context.call(op).await?;
        if let (Some(name), []) = (&self.mailbox, reply.mailboxes.as_slice()) {
            return Err(Error::new(Code::NotFound, format!("there is no mailbox `{name}`"))
                .hint("its first message makes it: fence mail push; fence mail shows those there are"));
        }
        context.print(&reply, |reply| match (&self.mailbox, reply.mailboxes.as_slice()) {
            (Some(_), [mailbox]) => text::mailbox(mailbox, &context.terminal),
            (_, []) => "no mailboxes: fence mail push makes one".into(),
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
