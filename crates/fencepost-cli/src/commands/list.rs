use crate::context::Context;
use clap::Args;
use fencepost::{Code, Error, Result, task, task::Status};
use std::process::ExitCode;

/// List tasks, oldest first
#[derive(Debug, Args)]
pub struct List {
    #[arg(long)]
    board: Option<String>,
    /// unassigned, offered, reviewing, pending, in_progress, completed, failed or cancelled
    #[arg(long)]
    status: Option<String>,
    /// At most this many
    #[arg(long)]
    limit: Option<i64>,
}

impl List {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let status = self.status.as_deref().map(read).transpose()?;
        let op = task::List { board: self.board, status, limit: self.limit, ..task::List::default() };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| match reply.tasks.as_slice() {
            [] => "no tasks".into(),
            tasks => {
                let more = if reply.more { "\n… and more: --limit shows them" } else { "" };
                crate::text::tasks(tasks, &context.screen) + more
            }
        })
    }
}

fn read(text: &str) -> Result<Status> {
    Status::ALL.into_iter().find(|status| status.as_str() == text).ok_or_else(|| {
        let all: Vec<_> = Status::ALL.into_iter().map(Status::as_str).collect();
        Error::new(Code::Invalid, format!("`{text}` is not a status"))
            .hint(format!("one of {}", all.join(", ")))
    })
}
