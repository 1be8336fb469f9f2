use super::{
    super::{ServerKey, body, json},
    text,
};
use crate::context::Context;
use clap::Args;
use fencepost::{Result, inbox};
use std::process::ExitCode;

/// Send a message to an agent's inbox
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
    /// The text, or - for standard input
    text: String,
    /// The source: slack, github, email, …  [default: api]
    #[arg(long)]
    source: Option<String>,
    /// The channel, repository or list that it comes from
    #[arg(long)]
    channel: Option<String>,
    /// The thread or issue that it belongs to
    #[arg(long)]
    thread: Option<String>,
    /// The author; the agent that sends it is stored, too
    #[arg(long, value_name = "WHO")]
    sender: Option<String>,
    /// The words in the source that triggered it, such as a mention
    #[arg(long, value_name = "WORDS")]
    matched: Option<String>,
    /// The source's delivery id: a second message with the same id is not sent
    #[arg(id = "message_key", long = "key", value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    server_key: ServerKey,
    /// More data of the source: JSON, @file, or - for standard input
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
}

impl Send {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = inbox::Send {
            agent: self.name,
            text: body(self.text)?,
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
            let existing = if reply.existing { "  (existed already)" } else { "" };
            let item = text::item(&reply.item, &context.terminal) + existing;
            match reply.agent_unknown {
                true => format!("{item}\n{}", super::super::route::not_joined(&reply.item.agent)),
                false => item,
            }
        })
    }
}
