use crate::{context::Context, output::tasks};
use clap::Args;
use fencepost::{Result, task};
use std::process::ExitCode;

/// Reopen a completed task: a new task with the same text that refers to it
///
/// The completed task stays as it is, and the worker of the new task sees its output. A task can be reopened once; repeating the
/// command shows the same new task. For a task that failed or was cancelled, use `fence retry`.
///
/// Examples:
///   fence reopen auth-3 --reason "it breaks on empty files"
///   fence reopen auth-3 --to kim
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Reopen {
    /// The task, such as auth-3
    #[arg(value_name = "ID", value_parser = super::task_id)]
    task: String,
    /// The reason: work that is left to do, as a note on the new task
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Assign the new task to this agent
    #[arg(long, value_name = "AGENT")]
    to: Option<String>,
}

impl Reopen {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op =
            task::Reopen { task: self.task, reason: self.reason, to: self.to, request: context.request() };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| {
            let existing = if reply.existing { "  (was reopened already)" } else { "" };
            tasks::task(&reply.task, &context.terminal) + existing
        })
    }
}
