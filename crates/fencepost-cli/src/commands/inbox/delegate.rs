use super::{Which, text};
use crate::{context::Context, output::tasks};
use clap::Args;
use fencepost::{Result, inbox};
use std::process::ExitCode;

/// Turn a message into a task, or link it to an existing one; the message is then delegated
///
/// A new task gets the message's source, channel and thread, so that its worker can answer there.
///
/// Examples:
///   fence inbox delegate message/7@1 --board ops --to bob
///   fence inbox delegate 8 --task auth-3
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Delegate {
    #[command(flatten)]
    which: Which,
    /// An existing task
    #[arg(long, value_name = "ID", value_parser = super::super::task_id, conflicts_with_all = ["title", "board", "to", "offer"])]
    task: Option<String>,
    /// The title of the new task  [default: the first line of the message]
    #[arg(long)]
    title: Option<String>,
    /// The board of the new task  [default: main]
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
            let (item, task) =
                (text::item(&reply.item, &context.terminal), tasks::task(&reply.task, &context.terminal));
            format!("{item}\n{task}")
        })
    }
}
