use crate::{
    context::Context,
    output::{Terminal, table::Table},
};
use clap::Args;
use fencepost::{Result, channel, channel::create::Channel};
use std::process::ExitCode;

/// List the channels, with the number of posts and the members
#[derive(Debug, Default, Args)]
#[command(alias = "ls")]
pub struct List {
    /// Only channels that your agent joined
    #[arg(long)]
    mine: bool,
}

impl List {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let agent = self.mine.then(|| context.required_agent()).transpose()?;
        let reply = context.call(channel::List { agent }).await?;
        context.print(&reply, |reply| match reply.channels.as_slice() {
            [] => "no channels: fence channel create creates one".into(),
            channels => table(channels, &context.terminal),
        })
    }
}

/// One line per channel: `general  12 posts  bob, lead  what concerns all`.
pub fn table(channels: &[Channel], terminal: &Terminal) -> String {
    let mut table = Table::new(&["CHANNEL", ">POSTS", "MEMBERS", "DESCRIPTION"]);
    for channel in channels {
        table.row(vec![
            channel.name.as_str().into(),
            format!("{} post{}", channel.posts, if channel.posts == 1 { "" } else { "s" }).into(),
            channel.members.join(", ").into(),
            channel.description.as_deref().unwrap_or_default().into(),
        ]);
    }
    table.render(terminal)
}
