use super::{
    dollars::Dollars,
    rule::{Scope, Used, What},
    set::WINDOW,
    usage::Usage,
};
use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::{Batch, Row, Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::{Error, Result},
    limits::{TTL_MAX, check},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Number;

/// Show the spend limits, how much of each is used and when it frees, and the totals of agents and boards.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Show {
    /// The window of the totals, at most 30 days (default one day).
    #[serde(default)]
    pub window_ms: Option<Millis>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Shown {
    pub limits: Vec<LimitView>,
    /// The window of the totals.
    pub window_ms: Millis,
    pub fleet: Spent,
    /// Agents with runs in the window, by name; at most 1000.
    pub agents: Vec<SpentBy>,
    /// Boards with runs in the window, by name; at most 1000.
    pub boards: Vec<SpentBy>,
}

/// A limit and its use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LimitView {
    /// The agent, if it is a limit of an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The board, if it is a limit of a board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub board: Option<String>,
    pub what: What,
    pub limit: Number,
    pub window_ms: Millis,
    /// Used within the window up to now.
    pub used: Number,
    /// Zero if the limit is reached.
    pub left: Number,
    /// Work is held back.
    pub reached: bool,
    /// The time at which a reached limit allows work again, if nothing more is used. Without one, somebody has to raise it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frees_at: Option<Time>,
}

impl LimitView {
    pub(super) fn of(used: Used) -> Self {
        let (reached, frees_at) = (used.is_reached(), used.frees_at());
        let limit = used.limit;
        let number = |amount| limit.what.number(amount);
        let (agent, board) = match &limit.scope {
            Scope::Fleet => (None, None),
            Scope::Agent(name) => (Some(name.clone()), None),
            Scope::Board(name) => (None, Some(name.clone())),
        };
        Self {
            agent,
            board,
            what: limit.what,
            limit: number(limit.amount),
            window_ms: limit.window,
            used: number(used.amount),
            left: number((limit.amount - used.amount).max(0)),
            reached,
            frees_at,
        }
    }
}

/// The runs of a window and their reported costs. A run counts when its trigger is delivered, and its cost when it is settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Spent {
    pub runs: i64,
    pub tokens_in: i64,
    pub tokens_out: i64,
    pub usd: Dollars,
}

/// The same for an agent or a board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpentBy {
    pub name: String,
    #[serde(flatten)]
    pub spent: Spent,
}

macro_rules! sums {
    ($name:literal, $rest:literal) => {
        concat!(
            "select ",
            $name,
            " count(*) as runs, cast(coalesce(sum(tokens_in), 0) as bigint) as tokens_in,
             cast(coalesce(sum(tokens_out), 0) as bigint) as tokens_out, cast(coalesce(sum(usd), 0) as bigint) as usd
             from triggered where at > ?1 ",
            $rest
        )
    };
}

impl Op for Show {
    const NAME: &'static str = "spend/show";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Shown;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Shown> {
        let window = self.window_ms.unwrap_or(WINDOW);
        check::span("window_ms", window, Millis(1), TTL_MAX)?;
        let since = Time(tx.now.0 - window.0);
        let mut batch = Batch::new();
        let limits = batch.add(Usage::all(tx.now));
        let [fleet, agents, boards] = [
            sums!("", ""),
            sums!("agent as name,", "group by agent order by agent limit 1000"),
            sums!("board as name,", "and board is not null group by board order by board limit 1000"),
        ]
        .map(|sql| batch.add(Stmt::read(sql, params![since])));
        let mut answers = tx.send(batch).await?;
        let named = |rows: Vec<Row>| rows.iter().map(SpentBy::read).collect::<Result<Vec<_>>>();
        let fleet = answers.take(fleet).rows;
        let fleet = fleet.first().ok_or_else(|| Error::internal("a sum has no row"))?;
        Ok(Shown {
            limits: Usage::read(&answers.take(limits).rows)?
                .into_vec()
                .into_iter()
                .map(LimitView::of)
                .collect(),
            window_ms: window,
            fleet: Spent::read(fleet)?,
            agents: named(answers.take(agents).rows)?,
            boards: named(answers.take(boards).rows)?,
        })
    }
}

impl Spent {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            runs: row.get("runs")?,
            tokens_in: row.get("tokens_in")?,
            tokens_out: row.get("tokens_out")?,
            usd: Dollars(row.get("usd")?),
        })
    }
}

impl SpentBy {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self { name: row.get("name")?, spent: Spent::read(row)? })
    }
}
