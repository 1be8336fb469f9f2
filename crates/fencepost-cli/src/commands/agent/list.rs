use super::table;
use crate::context::Context;
use clap::Args;
use fencepost::{Result, agent};
use std::process::ExitCode;

/// List the agents: who is there, what each is doing, and what is stranded with those who are not
///
/// Online is who polled within five minutes, or has a run that lives.
#[derive(Debug, Default, Args)]
#[command(alias = "ls")]
pub struct List {
    /// Also those that left
    #[arg(long)]
    all: bool,
}

impl List {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(agent::List { all: self.all }).await?;
        context.print(&reply, |reply| {
            let mut page = match reply.agents.as_slice() {
                [] => "no agents: fence agent join makes one known".into(),
                agents => table(agents, &context.terminal),
            };
            for agent::list::Unknown { agent, tasks } in &reply.unknown {
                page += &format!("\nno agent `{agent}`, for whom there is: {}", tasks.join(", "));
            }
            page
        })
    }
}
