use super::{pause::Which, table};
use crate::context::Context;
use clap::Args;
use fencepost::{Result, agent};
use std::process::ExitCode;

/// Resume a paused agent: its polls get work again
///
/// Examples:
///   fence agent resume bob
///   fence resume --all
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Resume {
    #[command(flatten)]
    which: Which,
}

impl Resume {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = agent::Resume { all: self.which.all, agent: self.which.agent(context)? };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| match reply.agents.as_slice() {
            [] => "no agents".into(),
            agents => table(agents, &context.terminal),
        })
    }
}
