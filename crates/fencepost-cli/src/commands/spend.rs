//! Spend limits: one verb, one file.

use crate::{
    context::Context,
    output::{
        Terminal,
        table::{Cell, Table},
    },
};
use clap::Args;
use fencepost::{
    Result,
    spend::{Dollars, What, show::LimitView},
};
use serde_json::{Number, Value};
use std::process::ExitCode;

verbs![set::Set, show::Show];

/// Limit what agents, boards and the fleet may spend; without a verb it shows the limits and what was spent
///
/// A limit is a number of runs, of tokens or of dollars within a window, such as a day. At a limit polls and claims are refused with
/// exit 6, and the work waits: it is taken when the window has room, or as soon as a person raises the limit. A cost is known when
/// its run is settled, so work that runs already may exceed a limit by its own cost.
///
/// Examples:
///   fence spend                                   the limits, and the spend of the last day
///   fence spend set --usd 50                      at most $50 a day for all agents together
///   fence spend set --agent bob --usd 5 --runs 100 --per 12h
///   fence spend set --board auth --off            no limits for this board any more
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Spend {
    #[command(subcommand)]
    verb: Option<Verb>,
}

impl Spend {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        self.verb.unwrap_or_else(|| Verb::Show(show::Show::default())).run(context).await
    }
}

/// One line per limit: `agent bob  usd  $1.25  $5.00  1d  $3.75 left`.
fn table(limits: &[LimitView], terminal: &Terminal) -> String {
    let mut table = Table::new(&["LIMIT OF", "WHAT", ">USED", ">LIMIT", ">PER", "STATE"]).headed();
    for limit in limits {
        let scope = match (&limit.agent, &limit.board) {
            (Some(agent), _) => format!("agent {agent}"),
            (_, Some(board)) => format!("board {board}"),
            (None, None) => "fleet".into(),
        };
        let shown = |number| shown(limit.what, number);
        let state = match (limit.reached, limit.frees_at) {
            (false, _) => Cell::from(format!("{} left", shown(&limit.left))),
            (true, Some(at)) => Cell::state_as("held", format!("holds work {}", terminal.until(at))),
            (true, None) => Cell::state_as("held", "holds work until it is raised".into()),
        };
        table.row(vec![
            scope.into(),
            limit.what.as_str().into(),
            shown(&limit.used).into(),
            shown(&limit.limit).into(),
            limit.window_ms.to_string().into(),
            state,
        ]);
    }
    table.render(terminal)
}

/// `$5.00`, or a plain number.
fn shown(what: What, amount: &Number) -> String {
    let dollars = || serde_json::from_value::<Dollars>(Value::Number(amount.clone())).ok();
    match what {
        What::Usd => dollars().map_or_else(|| amount.to_string(), |usd| usd.to_string()),
        What::Runs | What::Tokens => amount.to_string(),
    }
}
