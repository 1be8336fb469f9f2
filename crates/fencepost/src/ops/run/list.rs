use super::Run;
use crate::{
    caller::Access,
    db::{Row, RunRow, Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::{Error, Result},
    lease::claimable::leak,
    limits::check,
    ops::nouns,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, sync::LazyLock};

/// List runs, newest first: the living ones, or also ended ones. With a name, also the outputs of attempts that were not completed.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Also ended runs.
    #[serde(default)]
    pub all: bool,
    /// Only runs of this name.
    #[serde(default)]
    pub run: Option<String>,
    /// At most this many (default 100, at most 1000).
    #[serde(default)]
    pub limit: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Runs {
    pub runs: Vec<Run>,
}

/// The columns of a run and the number of its claims, with two endings of the statement: a page, and one run. An output may have
/// a megabyte, so a page has it only if it is of one name.
static PAGE: LazyLock<&str> = LazyLock::new(|| {
    shown(
        "case when cast(?4 as text) is null then null else output end",
        "where (?2 = 1 or (ended_at is null and expires_at > ?1)) and (cast(?4 as text) is null or name = ?4)
         order by key desc limit ?3",
    )
});
static ONE: LazyLock<&str> = LazyLock::new(|| shown("cast(null as text)", "where key = ?2"));

fn shown(output: &str, which: &str) -> &'static str {
    leak(format!(
        "select key, name, agent, ttl_ms, opened_at, expires_at, ended_at, reason, trigger_type, host, exit, cost, waiting_at,
  {output} as output,
  {} as holds
from run {which}",
        nouns().count_sql()
    ))
}

impl Op for List {
    const NAME: &'static str = "run/list";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Runs;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Runs> {
        let limit = self.limit.unwrap_or(100);
        check::range("limit", limit, 1, 1000)?;
        let page = Stmt::read(&PAGE, params![tx.now, i64::from(self.all), limit, self.run.as_deref()]);
        Ok(Runs { runs: views(tx, page).await? })
    }
}

/// One run, as it is now.
pub(super) async fn of(tx: &mut Tx<'_>, key: i64) -> Result<Run> {
    let run = views(tx, Stmt::read(&ONE, params![tx.now, key])).await?.pop();
    run.ok_or_else(|| Error::internal("a run that is not there"))
}

async fn views(tx: &mut Tx<'_>, page: Stmt) -> Result<Vec<Run>> {
    let rows = tx.one(page).await?.rows;
    let keys = rows.iter().map(|row| row.get("key")).collect::<Result<Vec<i64>>>()?;
    let mut held = claims(tx, &keys).await?;
    // An expired run holds nothing, even if expiry has not written that yet.
    let runs = rows.iter().map(|row| {
        let run = RunRow::read(row)?;
        let cost: Option<String> = row.get("cost")?;
        let cost = cost.map(|cost| serde_json::from_str(&cost)).transpose();
        let alive = run.is_alive(tx.now);
        Ok(Run {
            holds: if alive { row.get("holds")? } else { 0 },
            claims: held.remove(&run.key).filter(|_| alive).unwrap_or_default(),
            waiting_at: row.get::<Option<_>>("waiting_at")?.filter(|_| alive),
            trigger: row.get("trigger_type")?,
            host: row.get("host")?,
            exit: row.get("exit")?,
            cost: cost.map_err(Error::internal)?,
            output: row.get("output")?,
            ..run.view(tx.now)
        })
    });
    runs.collect()
}

/// The tokens of these runs' claims, by the run's key. Claims past their own limit are left out.
pub(crate) async fn claims(tx: &mut Tx<'_>, runs: &[i64]) -> Result<HashMap<i64, Vec<String>>> {
    let mut held = HashMap::<i64, Vec<String>>::new();
    if runs.is_empty() {
        return Ok(held);
    }
    let rows = tx.one(nouns().tokens_of_runs(runs, tx.now)).await?.rows;
    let place = |row: &Row| Ok((row.get("kind")?, row.get("name")?, row.get("n")?));
    let mut rows = rows
        .iter()
        .map(|row| Ok((place(row)?, row.get("run")?, row.get("token")?)))
        .collect::<Result<Vec<((i64, String, i64), i64, String)>>>()?;
    rows.sort_unstable();
    for (_, run, token) in rows {
        held.entry(run).or_default().push(token);
    }
    Ok(held)
}
