use super::{Which, text};
use crate::context::Context;
use clap::Args;
use fencepost::{Result, inbox};
use std::process::ExitCode;

/// Make a task of a message, or name the one that it belongs to, and deal with the message at once
///
/// A new task inherits where the message came from, so that whoever does it can answer there.
///
/// Examples:
///   fence inbox delegate message/7@1 --board ops --to bob
///   fence inbox delegate 8 --task auth-3
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Delegate {
    #[command(flatten)]
    which: Which,
    /// A task that is there already
    #[arg(long, value_name = "ID", value_parser = super::super::task_id, conflicts_with_all = ["title", "board", "to", "offer"])]
    task: Option<String>,
    /// The title of a new one  [default: the first line of the message]
    #[arg(long)]
    title: Option<String>,
    /// The board it goes to  [default: main]
    #[arg(long)]
    board: Option<String>,
    /// Assign it to this agent
    #[arg(long, value_name = "AGENT")]
    to: Option<String>,
    /// Offer it to this agent
    #[arg(long, value_name = "AGENT", conflicts_with = "to")]
    offer: Option<String>,
}

impl Delegate {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = inbox::Delegate {
            message: self.which.message(context).await?,
            task: self.task,
            title: self.title,
            board: self.board,
            to: self.to,
            offer: self.offer,
        };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| {
            let (item, task) = (
                text::item(&reply.item, &context.terminal),
                crate::output::tasks::task(&reply.task, &context.terminal),
            );
            format!("{item}\n{task}")
        })
    }
}
