use super::text::posts;
use crate::context::Context;
use clap::Args;
use fencepost::{Result, channel};
use std::process::ExitCode;

/// Read the unread posts of a channel, and mark them as read
///
/// While a run holds the agent's mentions in the channel (a poll returned them), reading marks nothing. The posts become read when
/// that run is settled.
///
/// Examples:
///   fence channel read general --agent bob
///   fence channel read general --agent bob --run bob-7f3a9c01b2d4
///   fence channel read general --agent bob --from 1 --peek
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Read {
    /// The channel
    channel: String,
    /// Start at this post; posts that it skips stay unread
    #[arg(long, value_name = "N")]
    from: Option<i64>,
    /// The most posts to show  [default: 50]
    #[arg(long)]
    limit: Option<i64>,
    /// Mark nothing as read
    #[arg(long)]
    peek: bool,
    /// The token of the mentions  [default: this run's]
    #[arg(long, conflicts_with = "peek")]
    token: Option<String>,
}

impl Read {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let agent = context.required_agent()?;
        let token = match self.token {
            Some(token) => Some(token),
            None if self.peek => None,
            None => context.token_of(&format!("mentions/{agent}/{}", self.channel)).await?,
        };
        let op = channel::Read {
            channel: self.channel,
            agent,
            from: self.from,
            limit: self.limit,
            peek: self.peek,
            token,
            request: context.request(),
        };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| {
            let mut page = posts(&reply.posts, &context.terminal);
            if page.is_empty() {
                page = "nothing new".into();
            }
            if reply.more {
                let last = reply.posts.last().map_or(0, |post| post.n);
                let is_marked = reply.cursor >= last;
                let how = if is_marked { "read again".into() } else { format!("--from {}", last + 1) };
                page += &format!("\n\n{}", context.terminal.and_more(&how));
            }
            if let Some(run) = reply.held_by.as_ref().filter(|_| !self.peek) {
                page += &format!(
                    "\n\nnothing was marked as read: run {run} holds the mentions until it is settled"
                );
            }
            page
        })
    }
}
