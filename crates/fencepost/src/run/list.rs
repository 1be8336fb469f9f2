use super::{Run, RunRow};
use crate::{
    error::Result,
    names::check,
    op::{Access, Op},
    params,
    tx::Tx,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

impl Op for List {
    const NAME: &'static str = "run/list";
    const ACCESS: Access = Access::Reader;
    const READS: bool = true;
    type Reply = Runs;

    async fn run(self, tx: &mut Tx<'_>) -> Result<Runs> {
        let limit = self.limit.unwrap_or(100);
        check::range("limit", limit, 1, 1000)?;
        let rows = tx
            .query(
                "select key, name, agent, ttl_ms, opened_at, expires_at, ended_at, reason,
                   (select count(*) from task where task.run = run.key)
                   + (select count(*) from message where message.run = run.key)
                   + (select count(*) from reader where reader.run = run.key)
                   + (select count(*) from lock where lock.run = run.key) as holds
                 from run where (?1 = 1 or (ended_at is null and expires_at > ?2))
                 and (cast(?4 as text) is null or name = ?4) order by key desc limit ?3",
                params![i64::from(self.all), tx.now, limit, self.run.as_deref()],
            )
            .await?;
        let runs =
            rows.iter().map(|row| Ok(Run { holds: row.get("holds")?, ..RunRow::read(row)?.view(tx.now) }));
        Ok(Runs { runs: runs.collect::<Result<_>>()? })
    }
}
