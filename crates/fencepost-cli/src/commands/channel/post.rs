use super::super::{ServerKey, speech};
use crate::context::Context;
use clap::Args;
use fencepost::{Result, channel};
use std::process::ExitCode;

/// Post to a channel: whoever is mentioned is given it by its next poll
///
/// Examples:
///   fence channel post general "@bob the schema has changed" --agent lead
///   fence channel post general - --reply-to 7 < answer.md
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Post {
    /// The channel
    channel: String,
    /// What to say; - for standard input
    text: String,
    /// Whom it mentions; may be given several times  [default: every agent and member of the channel
    /// that stands in it as @name, whatever the capitals]
    #[arg(long, value_name = "AGENT")]
    mention: Vec<String>,
    /// The number of the post that it answers
    #[arg(long, value_name = "N")]
    reply_to: Option<i64>,
    /// A second post with this key, in the same channel, is not posted
    #[arg(id = "post_key", long = "key", value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    server_key: ServerKey,
}

impl Post {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = channel::Post {
            channel: self.channel,
            body: speech(self.text)?,
            author: context.agent(),
            mentions: (!self.mention.is_empty()).then_some(self.mention),
            reply_to: self.reply_to,
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
            let there = if reply.existing { "  (was there already)" } else { "" };
            let unknown = match reply.unknown.as_slice() {
                [] => String::new(),
                names => {
                    let names: Vec<_> = names.iter().map(|name| format!("@{name}")).collect();
                    format!(
                        "\nnobody is called {}: fence agent list and fence channel list say who is there",
                        names.join(", ")
                    )
                }
            };
            format!("post {} in {}{mentions}{there}{unknown}", post.n, post.channel)
        })
    }
}
