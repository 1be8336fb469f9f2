use crate::{context::Context, output::tasks::page};
use clap::Args;
use fencepost::{Result, task};
use std::process::ExitCode;

/// Show a task in full
#[derive(Debug, Args)]
#[command(aliases = ["view", "get", "info"])]
pub struct Show {
    /// The task, such as auth-3
    #[arg(value_name = "ID", value_parser = super::task_of)]
    task: String,
}

impl Show {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(task::Show { task: self.task }).await?;
        context.print(&reply, |reply| page(&reply.task, &context.terminal))
    }
}
