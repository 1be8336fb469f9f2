use super::table;
use crate::context::Context;
use clap::Args;
use fencepost::{Result, agent};
use std::process::ExitCode;

/// List the agents, what each one does, and tasks that are stranded with agents that are offline
///
/// An agent is online if it polled within the last five minutes, or if one of its runs lives.
#[derive(Debug, Default, Args)]
#[command(alias = "ls")]
pub struct List {
    /// Include agents that left
    #[arg(long)]
    all: bool,
}

impl List {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(agent::List { all: self.all }).await?;
        context.print(&reply, |reply| {
            let mut page = match reply.agents.as_slice() {
                [] => "no agents: fence agent join registers one".into(),
                agents => table(agents, &context.terminal),
            };
            for agent::list::Unknown { agent, tasks } in &reply.unknown {
                page +=
                    &format!("\nno agent `{agent}` has joined, and tasks wait for it: {}", tasks.join(", "));
            }
            page
        })
    }
}
