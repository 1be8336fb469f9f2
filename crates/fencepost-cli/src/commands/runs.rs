use crate::{
    context::Context,
    screen::{Cell, Table},
};
use clap::Args;
use fencepost::{Result, run};
use std::process::ExitCode;

/// List the runs: who is at work, and until when each is taken to be alive
#[derive(Debug, Args)]
pub struct Runs {
    /// Also those that ended
    #[arg(long)]
    all: bool,
    /// At most this many  [default: 100]
    #[arg(long)]
    limit: Option<i64>,
}

impl Runs {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(run::List { run: None, all: self.all, limit: self.limit }).await?;
        context.print(&reply, |reply| {
            if reply.runs.is_empty() {
                return "no runs".into();
            }
            let mut table = Table::new(&["RUN", "AGENT", "STATE", ">HOLDS", "UNTIL", "REASON"]).headed();
            for run in &reply.runs {
                table.row(vec![
                    run.name.as_str().into(),
                    run.agent.as_deref().unwrap_or_default().into(),
                    Cell::state(if run.alive { "alive" } else { "ended" }),
                    run.holds.to_string().into(),
                    context.screen.when(run.ended_at.unwrap_or(run.expires_at)).into(),
                    run.reason.as_deref().unwrap_or_default().into(),
                ]);
            }
            table.render(&context.screen)
        })
    }
}
