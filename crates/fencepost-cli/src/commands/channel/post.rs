use super::super::{ServerKey, body};
use crate::context::Context;
use clap::Args;
use fencepost::{Result, channel};
use std::process::ExitCode;

/// Post to a channel; agents that it mentions get the post by their next poll
///
/// Examples:
///   fence channel post general "@bob the schema has changed" --agent lead
///   fence channel post general - --reply-to 7 < answer.md
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Post {
    /// The channel
    channel: String,
    /// The text, or - for standard input
    text: String,
    /// An agent that it mentions; may be given several times  [default: every agent and member of the channel that the text
    /// names as @name, in any case]
    #[arg(long, value_name = "AGENT")]
    mention: Vec<String>,
    /// The number of the post that this one answers
    #[arg(long, value_name = "N")]
    reply_to: Option<i64>,
    /// Wake nobody: mentions are no triggers, and members are not woken by it. For results and notices
    #[arg(long)]
    quiet: bool,
    /// A key of your choice: a second post with the same key in the channel is not posted
    #[arg(id = "post_key", long = "key", value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    server_key: ServerKey,
}

impl Post {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = channel::Post {
            channel: self.channel,
            body: body(self.text)?,
            author: context.agent(),
            mentions: (!self.mention.is_empty()).then_some(self.mention),
            reply_to: self.reply_to,
            suppress_auto_trigger: self.quiet,
            key: self.key,
            request: context.request(),
        };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| {
            let post = &reply.post;
            let mentions = match post.mentions.as_slice() {
                [] => String::new(),
                names => format!(", mentions {}", names.join(", ")),
            };
            let existing = if reply.existing { "  (existed already)" } else { "" };
            let unknown = match reply.unknown.as_slice() {
                [] => String::new(),
                names => {
                    let names: Vec<_> = names.iter().map(|name| format!("@{name}")).collect();
                    format!(
                        "\nno agent has the name {}: see fence agent list and fence channel list",
                        names.join(", ")
                    )
                }
            };
            format!("post {} in {}{mentions}{existing}{unknown}", post.n, post.channel)
        })
    }
}
