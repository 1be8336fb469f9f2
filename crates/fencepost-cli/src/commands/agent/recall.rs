use crate::context::Context;
use clap::Args;
use fencepost::{Result, agent};
use std::process::ExitCode;

/// Give an offline agent's waiting tasks back to the pool now
///
/// These are tasks that are offered or assigned to the agent and that no run has claimed. They go back by themselves after a
/// while (`agent join --strand`). Exits 4 if the agent is online.
///
/// Examples:
///   fence agent recall bob
///   fence agent recall bob --force
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Recall {
    /// The agent
    #[arg(value_name = "AGENT")]
    name: String,
    /// Take the tasks even if the agent is online
    #[arg(long)]
    force: bool,
    /// The reason, for the log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Recall {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = agent::Recall { agent: self.name, force: self.force, reason: self.reason };
        // The op works in batches; together they are one reply.
        let mut reply = context.call(op.clone()).await?;
        while reply.more {
            let next = context.call(op.clone()).await?;
            reply.tasks.extend(next.tasks);
            reply.more = next.more;
        }
        context.print(&reply, |reply| match reply.tasks.as_slice() {
            [] => format!("no task waits for agent {}", op.agent),
            tasks => format!("back in the pool: {}", tasks.join(", ")),
        })
    }
}
