use crate::{context::Context, output::tasks};
use clap::Args;
use fencepost::{Result, task};
use std::process::ExitCode;

/// List the tasks that can be claimed now, best first
#[derive(Debug, Args)]
pub struct Ready {
    /// Only tasks of this board
    #[arg(long)]
    board: Option<String>,
    /// The most tasks to show
    #[arg(long)]
    limit: Option<i64>,
}

impl Ready {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = task::Ready { board: self.board, agent: context.agent(), limit: self.limit };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| match reply.tasks.as_slice() {
            [] => "nothing is ready".into(),
            listed => tasks::ready(listed, &context.terminal),
        })
    }
}
