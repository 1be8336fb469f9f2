use super::{super::duration, table};
use crate::context::Context;
use clap::Args;
use fencepost::{Millis, Result, spend, spend::What};
use serde_json::Number;
use std::{collections::BTreeMap, process::ExitCode};

/// Set, raise or remove spend limits: of an agent (--agent), of a board (--board), or else of the fleet
///
/// A new value is in force at once, and wakes polls that wait for it. A limit that is only raised keeps its window. A limit of 0
/// holds everything back. An agent's key may not set limits.
///
/// Examples:
///   fence spend set --usd 50                      at most $50 a day for the fleet
///   fence spend set --agent bob --usd 5 --per 12h
///   fence spend set --board auth --runs 100 --tokens 2000000
///   fence spend set --agent bob --off             remove all limits of bob
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
#[command(group = clap::ArgGroup::new("limit").required(true).multiple(true).args(["runs", "tokens", "usd", "off"]))]
pub struct Set {
    /// The limits of this board
    #[arg(long, value_name = "BOARD")]
    board: Option<String>,
    /// At most this many runs: triggers of fence poll and fence work
    #[arg(long, value_name = "N")]
    runs: Option<u32>,
    /// At most this many tokens, in and out
    #[arg(long, value_name = "N")]
    tokens: Option<u64>,
    /// At most this many dollars, such as 5.00
    #[arg(long, value_name = "DOLLARS", value_parser = dollars)]
    usd: Option<Number>,
    /// The window of these limits, at most 30d  [default: the window that the limit has, or 1d]
    #[arg(long, value_parser = duration, value_name = "DURATION", allow_hyphen_values = true, conflicts_with = "off")]
    per: Option<Millis>,
    /// Remove all limits of this agent, board or fleet
    #[arg(long, conflicts_with_all = ["runs", "tokens", "usd"])]
    off: bool,
}

fn dollars(text: &str) -> Result<Number, String> {
    serde_json::from_str(text.trim_start_matches('$')).map_err(|_| "not an amount such as 5.00".to_owned())
}

impl Set {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let given = [
            (What::Runs, self.runs.map(Number::from)),
            (What::Tokens, self.tokens.map(Number::from)),
            (What::Usd, self.usd),
        ];
        let limits: BTreeMap<_, _> = match self.off {
            true => What::ALL.into_iter().map(|what| (what, None)).collect(),
            false => given.into_iter().filter(|(_, limit)| limit.is_some()).collect(),
        };
        // Only a flag: FENCE_AGENT names the agent that acts.
        let agent = context.flag("agent");
        let op = spend::Set { limits, agent, board: self.board, window_ms: self.per };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| match reply.limits.as_slice() {
            [] => "no spend limits of it are left".into(),
            limits => table(limits, &context.terminal),
        })
    }
}
