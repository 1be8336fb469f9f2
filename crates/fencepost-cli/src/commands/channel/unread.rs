use crate::{context::Context, output::table::Table};
use clap::Args;
use fencepost::{Result, channel};
use std::process::ExitCode;

/// Count the unread posts of your agent, and those that mention it, by channel
#[derive(Debug, Args)]
pub struct Unread {}

impl Unread {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(channel::Unread { agent: context.required_agent()? }).await?;
        context.print(&reply, |reply| {
            if reply.channels.is_empty() {
                return "no unread posts".into();
            }
            let mut table = Table::new(&["CHANNEL", ">POSTS", ">MENTIONS", "FROM", "HELD BY"]).headed();
            for unread in &reply.channels {
                table.row(vec![
                    unread.channel.as_str().into(),
                    unread.posts.to_string().into(),
                    unread.mentions.to_string().into(),
                    (unread.cursor + 1).to_string().into(),
                    unread.held_by.as_deref().unwrap_or_default().into(),
                ]);
            }
            table.render(&context.terminal)
        })
    }
}
