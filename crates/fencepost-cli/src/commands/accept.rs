use crate::{context::Context, output::tasks};
use clap::Args;
use fencepost::{Result, task};
use std::process::ExitCode;

/// Accept a task that was offered to your agent
///
/// A task under review (`claim ID` of an offer) can be accepted only by the run that holds it.
///
/// Example:
///   fence accept auth-3 --agent kim
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Accept {
    /// The task, such as auth-3
    #[arg(value_name = "ID", value_parser = super::task_id)]
    task: String,
}

impl Accept {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let token = context.token_of(&self.task).await?;
        let op = task::Accept {
            task: self.task,
            agent: context.required_agent()?,
            token,
            request: context.request(),
        };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| tasks::task(&reply.task, &context.terminal))
    }
}
