use crate::{context::Context, output::tasks};
use clap::Args;
use fencepost::{Result, task};
use std::process::ExitCode;

/// Reject a task that was offered to your agent; it goes back to the pool
///
/// Example:
///   fence reject auth-3 --reason "not my language" --agent kim
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Reject {
    /// The task, such as auth-3
    #[arg(value_name = "ID", value_parser = super::task_id)]
    task: String,
    /// The reason, which is kept with the task
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

impl Reject {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let token = context.token_of(&self.task).await?;
        let (agent, request) = (context.required_agent()?, context.request());
        let op = task::Reject { task: self.task, agent, reason: self.reason, token, request };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| tasks::task(&reply.task, &context.terminal))
    }
}
