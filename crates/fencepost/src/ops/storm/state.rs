//! The stored state of the scheduler: the breaker, the alarm and the counters.

use super::rule::Breaker;
use crate::{
    clock::Time,
    db::{Batch, Row, Stmt, Tx},
    error::{Error, Result},
    params,
};
use std::collections::BTreeMap;

const STATE: &str = "select opened_at, open_until, alarm, alarm_at from storm";

/// The alarm, and since when.
pub(super) type Alarm = Option<(String, Time)>;

pub(super) fn stmt() -> Stmt {
    Stmt::read(STATE, params![])
}

pub(super) fn read(rows: &[Row]) -> Result<(Breaker, Alarm)> {
    let row = rows.first().ok_or_else(|| Error::internal("the fleet has no row `storm`"))?;
    let breaker = Breaker { opened_at: row.get("opened_at")?, open_until: row.get("open_until")? };
    let alarm: (Option<String>, Option<Time>) = (row.get("alarm")?, row.get("alarm_at")?);
    Ok((breaker, alarm.0.zip(alarm.1)))
}

/// The breaker, with its row locked.
pub(super) async fn lock(tx: &mut Tx<'_>) -> Result<Breaker> {
    let mut batch = Batch::new();
    batch.add(Stmt::lock("select 1 from storm for update", params![]));
    let found = batch.add(stmt());
    Ok(read(&tx.send(batch).await?.take(found).rows)?.0)
}

/// Adds to counters. They come last in the lock order, sorted by name.
pub(crate) fn count(counts: &BTreeMap<&'static str, i64>) -> impl Iterator<Item = Stmt> {
    let counts = counts.iter().filter(|(_, n)| **n > 0);
    counts
        .map(|(name, n)| Stmt::write("update storm_count set n = n + ?2 where name = ?1", params![*name, *n]))
}

pub(super) fn counters() -> Stmt {
    Stmt::read("select name, n from storm_count", params![])
}

pub(super) fn read_counters(rows: &[Row]) -> Result<BTreeMap<String, i64>> {
    rows.iter().map(|row| Ok((row.get("name")?, row.get("n")?))).collect()
}
