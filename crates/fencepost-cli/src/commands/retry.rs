use crate::{context::Context, output::tasks};
use clap::Args;
use fencepost::{Result, task};
use std::process::ExitCode;

/// Let a failed or cancelled task be tried again, with all its attempts
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, aliases = ["requeue", "redo"])]
pub struct Retry {
    /// The task, such as auth-3
    #[arg(value_name = "ID", value_parser = super::task_id)]
    task: String,
}

impl Retry {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = task::Retry { task: self.task, request: context.request() };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| tasks::task(&reply.task, &context.terminal))
    }
}
