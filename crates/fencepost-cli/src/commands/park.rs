use crate::{context::Context, output::tasks};
use clap::Args;
use fencepost::{Result, task};
use std::process::ExitCode;

/// Set a task aside: nobody can claim it until it is unparked
///
/// Example:
///   fence park auth-3 --reason "waits for the security review"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Park {
    /// The task, such as auth-3
    #[arg(value_name = "ID", value_parser = super::task_id)]
    task: String,
    /// The reason, which is kept with the task
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

impl Park {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = task::Park { task: self.task, reason: self.reason, request: context.request() };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| tasks::task(&reply.task, &context.terminal))
    }
}
