use super::{
    super::{ServerKey, json, speech},
    text,
};
use crate::context::Context;
use clap::Args;
use fencepost::{Result, inbox};
use std::process::ExitCode;

/// Send something to an agent's inbox
///
/// Examples:
///   fence inbox send lead "the site is down"
///   fence inbox send lead - --source email --sender kim@example.org --key "$MESSAGE_ID" < mail.txt
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Send {
    /// The agent
    #[arg(value_name = "AGENT")]
    name: String,
    /// What it says; - for standard input
    text: String,
    /// Where it comes from: slack, github, email, …  [default: api]
    #[arg(long)]
    source: Option<String>,
    /// The channel, the repository, the list, … that it was said in
    #[arg(long)]
    channel: Option<String>,
    /// The thread, the issue, … that it belongs to
    #[arg(long)]
    thread: Option<String>,
    /// Who said it; which agent sent it is stored beside this
    #[arg(long, value_name = "WHO")]
    sender: Option<String>,
    /// The words that brought it here
    #[arg(long, value_name = "WORDS")]
    matched: Option<String>,
    /// The source's delivery id: a second message with it is not sent
    #[arg(id = "message_key", long = "key", value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    server_key: ServerKey,
    /// Whatever else the source said: JSON, @file, or - for standard input
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
}

impl Send {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = inbox::Send {
            agent: self.name,
            text: speech(self.text)?,
            source: self.source,
            channel: self.channel,
            thread: self.thread,
            sender: self.sender,
            matched: self.matched,
            data: self.data.map(|data| json("data", data)).transpose()?,
            key: self.key,
            request: context.request(),
        };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| {
            let there = if reply.existing { "  (was there already)" } else { "" };
            let item = text::item(&reply.item, &context.terminal) + there;
            match reply.agent_unknown {
                true => format!("{item}\n{}", super::super::route::not_joined(&reply.item.agent)),
                false => item,
            }
        })
    }
}
