use crate::{
    context::Context,
    output::{
        table::{Cell, Table},
        tasks,
        text::json,
    },
};
use clap::Args;
use fencepost::{Result, run};
use std::process::ExitCode;

/// List the runs: who is at work and where, on what, and until when each is taken to be alive
///
/// Of those that ended: how, and what it cost, as `settle` was told.
///
/// Examples:
///   fence runs
///   fence runs --all --limit 20
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, alias = "ps")]
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
            let heads = [
                "RUN", "AGENT", "HOST", "STATE", "TRIGGER", "STARTED", "UNTIL", "REASON", "EXIT", "COST",
                "HOLDS",
            ];
            let mut table = Table::new(&heads).headed();
            for run in &reply.runs {
                // Nobody has written down yet that its lease is over.
                let over_at = run.ended_at.filter(|_| !run.lapsed).unwrap_or(run.expires_at);
                let word = |text: &Option<String>| Cell::from(text.as_deref().unwrap_or_default());
                table.row(vec![
                    run.name.as_str().into(),
                    word(&run.agent),
                    word(&run.host),
                    Cell::state(if run.alive { "alive" } else { "ended" }),
                    word(&run.trigger),
                    context.terminal.when(run.opened_at).into(),
                    context.terminal.when(over_at).into(),
                    word(&run.reason),
                    word(&run.exit),
                    run.cost.as_ref().map(json).unwrap_or_default().into(),
                    tasks::tokens(&run.claims).into(),
                ]);
            }
            table.render(&context.terminal)
        })
    }
}
