use super::{super::one_of, text};
use crate::context::Context;
use clap::Args;
use fencepost::{Result, inbox, inbox::Status};
use std::process::ExitCode;

/// List the open messages of an agent's inbox, oldest first
#[derive(Debug, Default, Args)]
#[command(alias = "ls")]
pub struct List {
    /// The agent  [default: --agent, FENCE_AGENT]
    #[arg(value_name = "AGENT")]
    name: Option<String>,
    /// Only messages in this state: unread, processing, read, responded, delegated or failed
    #[arg(long)]
    status: Option<String>,
    /// Include messages that were read, responded to or delegated
    #[arg(long)]
    all: bool,
    /// Start after this message, the last one of the previous page
    #[arg(long, value_name = "ID", value_parser = super::super::mail::number, alias = "after")]
    start_after: Option<i64>,
    /// The most messages to show  [default: 100]
    #[arg(long)]
    limit: Option<i64>,
}

impl List {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let agent = self.name.map_or_else(|| context.required_agent(), Ok)?;
        let status = self.status.as_deref();
        let status = status.map(|text| one_of("status", &Status::ALL, Status::as_str, text)).transpose()?;
        let op = inbox::List { agent, all: self.all, status, after: self.start_after, limit: self.limit };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| match reply.items.as_slice() {
            [] => "no messages".into(),
            items => {
                let last = items.last().map_or(0, |item| item.id);
                let more = reply
                    .more
                    .then(|| format!("\n{}", context.terminal.and_more(&format!("--start-after {last}"))));
                text::items(items, &context.terminal) + &more.unwrap_or_default()
            }
        })
    }
}
