use crate::{context::Context, output::tasks};
use clap::Args;
use fencepost::{Result, task};
use std::process::ExitCode;

/// Cancel an unfinished task
///
/// If a run holds the task, its claim ends, and its guard stops it. Tasks that depend on it stay blocked until `fence retry` or
/// `fence dep rm`.
///
/// Example:
///   fence cancel auth-3 --reason "done by hand"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Cancel {
    /// The task, such as auth-3
    #[arg(value_name = "ID", value_parser = super::task_id)]
    task: String,
    /// The reason, which is kept with the task
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Cancel {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = task::Cancel { task: self.task, reason: self.reason, request: context.request() };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| tasks::task(&reply.task, &context.terminal))
    }
}
