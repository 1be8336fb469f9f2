use super::text;
use crate::context::Context;
use clap::Args;
use fencepost::{Result, loops};
use std::process::ExitCode;

/// List the active loops, the newest first
#[derive(Debug, Args)]
#[command(alias = "ls")]
pub struct List {
    /// Also loops that are over
    #[arg(long)]
    all: bool,
    /// The most loops to show  [default: 100]
    #[arg(long)]
    limit: Option<i64>,
}

impl List {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let all = self.all;
        let reply = context.call(loops::List { all, limit: self.limit }).await?;
        context.print(&reply, |reply| match (reply.loops.as_slice(), all) {
            ([], true) => "no loops: fence loop start begins one".into(),
            ([], false) => "no loop is active: --all shows those that are over".into(),
            (loops, _) => text::list(loops, &context.terminal),
        })
    }
}
