use crate::{context::Context, output::tasks};
use clap::Args;
use fencepost::{Result, task};
use std::process::ExitCode;

/// Do a completed task again: a new task with the same words that names it
///
/// The completed one stays as it is, and its output is shown to whoever takes the new one. A task is reopened once; asking
/// again shows the same new task. A task that failed or was cancelled is brought back by `fence retry`.
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
    /// What is not done yet; kept with the new task as a note
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
            let there = if reply.existing { "  (was reopened already)" } else { "" };
            tasks::task(&reply.task, &context.terminal) + there
        })
    }
}
