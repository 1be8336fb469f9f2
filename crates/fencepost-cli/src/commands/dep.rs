use crate::{context::Context, output::tasks};
use clap::{Args, Subcommand};
use fencepost::{Result, task};
use std::process::ExitCode;

/// Add or remove a dependency between two tasks
///
/// Examples:
///   fence dep add auth-3 auth-1       auth-3 waits for auth-1
///   fence dep rm auth-3 auth-1        auth-3 no longer waits for it
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, aliases = ["deps", "depend"])]
pub struct Dep {
    #[command(subcommand)]
    change: Change,
}

#[derive(Debug, Subcommand)]
enum Change {
    /// Make a task wait for another; cycles are refused
    Add(Edge),
    /// Stop a task from waiting for another
    #[command(aliases = ["remove", "delete"])]
    Rm {
        #[command(flatten)]
        edge: Edge,
        /// The reason, for the log
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

#[derive(Debug, Args)]
struct Edge {
    /// The task that waits
    #[arg(value_name = "ID", value_parser = super::task_id)]
    task: String,
    /// The task that must be completed first
    #[arg(value_name = "AFTER")]
    after: String,
}

impl Dep {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let request = context.request();
        let reply = match self.change {
            Change::Add(Edge { task, after }) => context.call(task::Depend { task, after, request }).await?,
            Change::Rm { edge: Edge { task, after }, reason } => {
                context.call(task::Undepend { task, after, reason, request }).await?
            }
        };
        context.print(&reply, |reply| tasks::task(&reply.task, &context.terminal))
    }
}
