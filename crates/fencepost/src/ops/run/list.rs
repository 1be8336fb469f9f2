use super::{Run, RunRow};
use crate::{
    clock::Time,
    db::tx::{Row, Stmt, Tx, key_set},
    engine::op::{Access, Op, erased},
    error::{Error, Result},
    names::check,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// List runs: the living, newest first, or also those that ended.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Also runs that ended.
    #[serde(default)]
    pub all: bool,
    /// Only those of this name.
    #[serde(default)]
    pub run: Option<String>,
    /// At most this many (100 unless said, at most 1000).
    #[serde(default)]
    pub limit: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Runs {
    pub runs: Vec<Run>,
}

macro_rules! shown {
    ($rest:literal) => {
        concat!(
            "select key, name, agent, ttl_ms, opened_at, expires_at, ended_at, reason, trigger_type, host, exit, cost,
               (select count(*) from task where task.run = run.key and (until_at is null or until_at > ?1))
               + (select count(*) from message where message.run = run.key and (until_at is null or until_at > ?1))
               + (select count(*) from reader where reader.run = run.key and (until_at is null or until_at > ?1))
               + (select count(*) from lock where lock.run = run.key and (until_at is null or until_at > ?1)) as holds
             from run ",
            $rest
        )
    };
}

impl Op for List {
    const NAME: &'static str = "run/list";
    const ACCESS: Access = Access::Reader;
    const READS: bool = true;
    type Reply = Runs;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Runs> {
        let limit = self.limit.unwrap_or(100);
        check::range("limit", limit, 1, 1000)?;
        let page = Stmt::new(
            shown!(
                "where (?2 = 1 or (ended_at is null and expires_at > ?1)) and (cast(?4 as text) is null or name = ?4)
                 order by key desc limit ?3"
            ),
            params![tx.now, i64::from(self.all), limit, self.run.as_deref()],
        );
        Ok(Runs { runs: views(tx, page).await? })
    }
}

/// One of them, as it is now.
pub(super) async fn of(tx: &mut Tx<'_>, key: i64) -> Result<Run> {
    let run = views(tx, Stmt::new(shown!("where key = ?2"), params![tx.now, key])).await?.pop();
    run.ok_or_else(|| Error::internal("a run that is not there"))
}

async fn views(tx: &mut Tx<'_>, page: Stmt) -> Result<Vec<Run>> {
    let rows = tx.one(page).await?.rows;
    let keys = rows.iter().map(|row| row.get("key")).collect::<Result<Vec<i64>>>()?;
    let mut held = claims(tx, &keys).await?;
    // One that is over holds nothing, even if that is not written yet.
    let runs = rows.iter().map(|row| {
        let run = RunRow::read(row)?;
        let cost: Option<String> = row.get("cost")?;
        let cost = cost.map(|cost| serde_json::from_str(&cost)).transpose();
        let alive = run.is_alive(tx.now);
        Ok(Run {
            holds: if alive { row.get("holds")? } else { 0 },
            claims: held.remove(&run.key).filter(|_| alive).unwrap_or_default(),
            trigger: row.get("trigger_type")?,
            host: row.get("host")?,
            exit: row.get("exit")?,
            cost: cost.map_err(Error::internal)?,
            ..run.view(tx.now)
        })
    });
    runs.collect()
}

/// The tokens of what these runs hold, by the run's key; without claims whose own end has come.
pub(crate) async fn claims(tx: &mut Tx<'_>, runs: &[i64]) -> Result<HashMap<i64, Vec<String>>> {
    let mut held = HashMap::<i64, Vec<String>>::new();
    if runs.is_empty() {
        return Ok(held);
    }
    let rows = tx.one(tokens(runs, tx.now)).await?.rows;
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

macro_rules! tokens {
    ($runs:literal, $until:literal) => {
        concat!(
            "with listed as (",
            $runs,
            ")
             select task.run, 'task/' || board || '-' || n || '@' || fence as token, 1 as kind, board as name, n
               from listed join task on task.run = listed.key ",
            $until,
            "
             union all
             select message.run, 'message/' || id || '@' || fence, 2, '', id
               from listed join message on message.run = listed.key ",
            $until,
            "
             union all
             select reader.run, 'mentions/' || reader.agent || '/' || channel || '@' || fence, 3, channel, 0
               from listed join reader on reader.run = listed.key ",
            $until,
            "
             union all
             select lock.run, 'lock/' || lock.name || '@' || fence, 4, lock.name, 0
               from listed join lock on lock.run = listed.key ",
            $until,
            "
             limit 10000"
        )
    };
}

fn tokens(runs: &[i64], now: Time) -> Stmt {
    Stmt::new(
        tokens!(
            "select cast(value ->> 'k' as bigint) as key from json_each(?1)",
            "and (until_at is null or until_at > ?2)"
        ),
        params![key_set(runs.iter().copied()), now],
    )
}

/// Of the unended run of this name, whatever became of them.
pub(super) fn tokens_of(name: &str) -> Stmt {
    Stmt::new(tokens!("select key from run where name = ?1 and ended_at is null", ""), params![name])
}
