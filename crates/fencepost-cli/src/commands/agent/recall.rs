use crate::context::Context;
use clap::Args;
use fencepost::{Result, agent};
use std::process::ExitCode;

/// Give back to the pool at once what is stranded with an agent: offered or assigned to it, and not begun
///
/// It happens by itself after a while (`agent join --strand`). Exits 4 if the agent is there.
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
    /// Also from an agent that is there
    #[arg(long)]
    force: bool,
    /// Why; it is kept in the log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Recall {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = agent::Recall { agent: self.name, force: self.force, reason: self.reason };
        // A batch at a time: together they are one answer.
        let mut reply = context.call(op.clone()).await?;
        while reply.more {
            let next = context.call(op.clone()).await?;
            reply.tasks.extend(next.tasks);
            reply.more = next.more;
        }
        context.print(&reply, |reply| match reply.tasks.as_slice() {
            [] => format!("nothing waited for agent {}", op.agent),
            tasks => format!("anyone's again: {}", tasks.join(", ")),
        })
    }
}
