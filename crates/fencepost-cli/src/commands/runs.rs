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

/// List the runs, with their hosts, triggers, leases and claims
///
/// For ended runs it shows how they ended, and the exit and the cost that `settle` recorded.
///
/// Examples:
///   fence runs
///   fence runs --all --limit 20
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, alias = "ps")]
pub struct Runs {
    /// Include ended runs
    #[arg(long)]
    all: bool,
    /// The most runs to show  [default: 100]
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
                // For a lapsed run, expiry has not written the end yet.
                let over_at = run.ended_at.filter(|_| !run.lapsed).unwrap_or(run.expires_at);
                let word = |text: &Option<String>| Cell::from(text.as_deref().unwrap_or_default());
                table.row(vec![
                    run.name.as_str().into(),
                    word(&run.agent),
                    word(&run.host),
                    Cell::state(match (run.alive, run.waiting_at) {
                        (true, Some(_)) => "waiting",
                        (true, None) => "alive",
                        (false, _) => "ended",
                    }),
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
