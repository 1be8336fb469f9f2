use crate::{context::Context, output::tasks};
use clap::Args;
use fencepost::{Result, task};
use std::process::ExitCode;

/// Offer a task to an agent, which may accept or reject it
///
/// Example:
///   fence offer auth-3 kim
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Offer {
    /// The task, such as auth-3
    #[arg(value_name = "ID", value_parser = super::task_id)]
    task: String,
    /// The name of the agent
    agent: String,
}

impl Offer {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = task::Offer { task: self.task, to: self.agent, request: context.request() };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| tasks::task(&reply.task, &context.terminal))
    }
}
