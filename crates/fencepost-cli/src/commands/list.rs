use super::one_of;
use crate::context::Context;
use clap::Args;
use fencepost::{Result, task, task::Status};
use std::process::ExitCode;

/// List tasks, oldest first
///
/// Examples:
///   fence list --board auth --status failed
///   fence list --tag rust --to kim
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, aliases = ["ls", "tasks"])]
pub struct List {
    /// Only of this board
    #[arg(long)]
    board: Option<String>,
    /// unassigned, offered, reviewing, pending, in_progress, completed, failed or cancelled
    #[arg(long)]
    status: Option<String>,
    /// Only what is assigned to this agent
    #[arg(long, value_name = "AGENT")]
    to: Option<String>,
    /// Only with this tag
    #[arg(long)]
    tag: Option<String>,
    /// Only what comes after this task: the last of the page before
    #[arg(long, value_name = "ID", alias = "after")]
    start_after: Option<String>,
    /// At most this many  [default: 100]
    #[arg(long)]
    limit: Option<i64>,
}

impl List {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let status = self.status.as_deref();
        let status = status.map(|text| one_of("status", &Status::ALL, Status::as_str, text)).transpose()?;
        let op = task::List {
            board: self.board,
            status,
            assignee: self.to,
            tag: self.tag,
            after: self.start_after,
            limit: self.limit,
        };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| match reply.tasks.as_slice() {
            [] => "no tasks".into(),
            tasks => {
                let last = tasks.last().map_or("", |task| &task.id);
                let more = reply
                    .more
                    .then(|| format!("\n{}", context.screen.and_more(&format!("--start-after {last}"))));
                crate::text::tasks(tasks, &context.screen) + &more.unwrap_or_default()
            }
        })
    }
}
