//! The limits of the fleet, and how much of each is used.

use super::rule::{Limit, Refusal, Scope, Used, What, refused};
use crate::{
    clock::Time,
    db::{Row, Stmt, Tx},
    error::{Error, Result},
    params,
};
use std::collections::BTreeMap;

/// Reads whether any limit could hold back work of this agent. It is sent with other reads: without limits, it is all that they
/// cost.
pub(crate) fn is_limited(agent: Option<&str>) -> Stmt {
    Stmt::read(
        "select 1 as one from spend_limit where scope = 'fleet' or scope = ?1 or scope like 'board/%' limit 1",
        params![agent.map(agent_scope)],
    )
}

fn agent_scope(agent: &str) -> String {
    Scope::Agent(agent.into()).to_string()
}

/// SQL: the part of a trigger that the limit counts.
macro_rules! counted {
    () => {
        "case lim.what when 'runs' then 1 when 'usd' then triggered.usd
         else triggered.tokens_in + triggered.tokens_out end"
    };
}

/// SQL: one query over the triggers in the window of a limit, for each scope with the index of that scope. At exactly the end of
/// the window a trigger no longer counts.
macro_rules! in_window {
    ($head:expr, $tail:literal) => {
        concat!(
            "case when lim.scope = 'fleet' then (",
            $head,
            " where triggered.at > ?1 - lim.window_ms",
            $tail,
            ") when lim.scope like 'agent/%' then (",
            $head,
            " where triggered.agent = substr(lim.scope, 7) and triggered.at > ?1 - lim.window_ms",
            $tail,
            ") else (",
            $head,
            " where triggered.board = substr(lim.scope, 7) and triggered.at > ?1 - lim.window_ms",
            $tail,
            ") end"
        )
    };
}

/// The limits with their use. The running sum, from the newest trigger back, is made only for limits that are reached.
const USED: &str = concat!(
    "with used as materialized (
       select lim.scope, lim.what, lim.amount, lim.window_ms, cast(",
    in_window!(concat!("select coalesce(sum(", counted!(), "), 0) from triggered"), ""),
    " as bigint) as used from spend_limit as lim
       where cast(?3 as bigint) = 1 or lim.scope = 'fleet' or lim.scope = ?2 or lim.scope like 'board/%'
     )
     select lim.scope, lim.what, lim.amount, lim.window_ms, lim.used, case when lim.used >= lim.amount then ",
    in_window!(
        concat!(
            "select max(newest.at) from (select triggered.at, sum(",
            counted!(),
            ") over (order by triggered.at desc, triggered.run desc) as total from triggered"
        ),
        ") as newest where newest.total >= lim.amount"
    ),
    " end as reached_at from used as lim order by lim.scope, lim.what"
);

/// Limits with their use.
#[derive(Debug, Default)]
pub(crate) struct Usage(Vec<Used>);

/// The boards at a limit, each with its refusal.
pub(crate) type Closed = BTreeMap<String, Refusal>;

impl Usage {
    /// The limits of this agent, of the fleet and of all boards.
    pub async fn of(tx: &mut Tx<'_>, agent: Option<&str>) -> Result<Self> {
        let scope = agent.map(agent_scope);
        Self::read(&tx.query(USED, params![tx.now, scope, 0]).await?)
    }

    /// All limits.
    pub fn all(now: Time) -> Stmt {
        Stmt::read(USED, params![now, None::<&str>, 1])
    }

    pub fn read(rows: &[Row]) -> Result<Self> {
        let read = |row: &Row| {
            let what: String = row.get("what")?;
            let limit = Limit {
                scope: Scope::read(&row.get::<String>("scope")?),
                what: What::read(&what)
                    .ok_or_else(|| Error::internal(format!("a spend limit counts `{what}`")))?,
                amount: row.get("amount")?,
                window: row.get("window_ms")?,
            };
            Ok(Used { limit, amount: row.get("used")?, reached_at: row.get("reached_at")? })
        };
        rows.iter().map(read).collect::<Result<_>>().map(Self)
    }

    pub fn into_vec(self) -> Vec<Used> {
        self.0
    }

    /// The refusal of all work: the agent or the fleet is at a limit.
    pub fn refused(&self, now: Time) -> Option<Refusal> {
        refused(self.0.iter().filter(|used| !matches!(used.limit.scope, Scope::Board(_))), now)
    }

    /// The boards at a limit.
    pub fn closed(&self, now: Time) -> Closed {
        let mut of_boards: BTreeMap<&str, Vec<&Used>> = BTreeMap::new();
        for used in &self.0 {
            if let Scope::Board(board) = &used.limit.scope {
                of_boards.entry(board).or_default().push(used);
            }
        }
        let closed =
            of_boards.into_iter().filter_map(|(board, used)| Some((board.to_owned(), refused(used, now)?)));
        closed.collect()
    }
}
