use super::{super::duration, table};
use crate::{
    context::Context,
    output::{Terminal, table::Table},
};
use clap::Args;
use fencepost::{
    Millis, Result, spend,
    spend::show::{Shown, Spent},
};
use std::process::ExitCode;

/// Show the limits, how much of each is used, and what was spent
///
/// A run counts when `fence poll` or `fence work` gets its trigger. Its tokens and dollars count when it is settled with --cost;
/// `fence work` reads them from the output of the agent. Tasks that are claimed by hand do not count.
///
/// Examples:
///   fence spend show
///   fence spend show --per 7d                     what was spent in the last week
///   fence spend show --json
#[derive(Debug, Default, Args)]
#[command(verbatim_doc_comment)]
pub struct Show {
    /// The window of what was spent  [default: 1d]
    #[arg(long, value_parser = duration, value_name = "DURATION", allow_hyphen_values = true)]
    per: Option<Millis>,
}

impl Show {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(spend::Show { window_ms: self.per }).await?;
        context.print(&reply, |reply| page(reply, &context.terminal))
    }
}

fn page(shown: &Shown, terminal: &Terminal) -> String {
    let limits = match shown.limits.as_slice() {
        [] => "no spend limits: fence spend set --usd 50 sets one".into(),
        limits => table(limits, terminal),
    };
    let mut spent = Table::new(&["SPENT BY", ">RUNS", ">TOKENS IN", ">TOKENS OUT", ">USD"]).headed();
    let mut row = |who: String, spent_by: &Spent| {
        spent.row(vec![
            who.into(),
            spent_by.runs.to_string().into(),
            spent_by.tokens_in.to_string().into(),
            spent_by.tokens_out.to_string().into(),
            spent_by.usd.to_string().into(),
        ]);
    };
    shown.agents.iter().for_each(|agent| row(format!("agent {}", agent.name), &agent.spent));
    shown.boards.iter().for_each(|board| row(format!("board {}", board.name), &board.spent));
    row("fleet".into(), &shown.fleet);
    format!("{limits}\n\nin the last {}:\n{}", shown.window_ms, spent.render(terminal))
}
