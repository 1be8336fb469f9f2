//! Ending runs. Ending is one write, and final: all the run's tokens are void from then on.
//!
//! A run that dies is not renewed. When its lease is over, `expiry.rs` ends it and gives its items back by the noun's own rule,
//! `ops/NOUN/lapse.rs`: a task is free again until its attempts are used up, and then it fails.

use super::{
    Nouns,
    run::{BY_NAME, LAPSED, runs},
};
use crate::{
    db::{Batch, RunRow, Slot, Stmt, Tx, by_keys},
    error::{Code, Error, Result},
    log::Event,
    params,
    topic::Topic,
};

/// The unended run of this name, locked against renewal.
pub(crate) async fn lock(tx: &mut Tx<'_>, name: &str) -> Result<Option<RunRow>> {
    let mut batch = Batch::new();
    batch.add(locked(name));
    let found = batch.add(Stmt::read(BY_NAME, params![name]));
    let found = tx.send(batch).await?.take(found).rows;
    let run = found.first().map(RunRow::read).transpose()?;
    if let Some(run) = &run {
        tx.caller.may_use(&run.name, run.agent.as_deref())?;
    }
    Ok(run)
}

pub(crate) fn locked(name: &str) -> Stmt {
    Stmt::lock("select key from run where name = ?1 and ended_at is null for update", params![name])
}

/// The living run of this name, locked, if a poll opened it.
pub(crate) async fn lock_triggered(tx: &mut Tx<'_>, name: Option<&str>) -> Result<Option<RunRow>> {
    let Some(name) = name else { return Ok(None) };
    let rows = tx
        .query(
            runs!("where name = ?1 and ended_at is null and trigger_type is not null /*pg for update*/"),
            params![name],
        )
        .await?;
    Ok(rows.first().map(RunRow::read).transpose()?.filter(|run| run.is_alive(tx.now)))
}

/// Ends a locked run if it holds nothing.
pub(crate) async fn end_if_idle(
    tx: &mut Tx<'_>,
    nouns: &'static Nouns,
    run: RunRow,
    reason: &str,
) -> Result<()> {
    let held = tx.one(nouns.held(run.key)).await?.rows;
    if held[0].get::<i64>("n")? == 0 {
        let mut batch = Batch::new();
        add_end(&mut batch, tx, &[run], reason, Holds::Nothing(nouns))?;
        tx.send(batch).await?;
    }
    Ok(())
}

/// Whether runs still hold items when they end.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Holds {
    Nothing(&'static Nouns),
    /// Perhaps: expiry gives the items back.
    Perhaps,
}

pub(crate) async fn end(tx: &mut Tx<'_>, runs: &[RunRow], reason: &str) -> Result<()> {
    let mut batch = Batch::new();
    add_end(&mut batch, tx, runs, reason, Holds::Perhaps)?;
    tx.send(batch).await.map(drop)
}

/// Ends all runs. Returns their number.
pub(crate) async fn end_all(tx: &mut Tx<'_>, reason: &str) -> Result<u64> {
    let rows = tx.query(runs!("where ended_at is null order by key /*pg for update*/"), params![]).await?;
    let runs = rows.iter().map(RunRow::read).collect::<Result<Vec<_>>>()?;
    if !runs.is_empty() {
        end(tx, &runs, reason).await?;
    }
    Ok(runs.len() as u64)
}

/// One write, and final. The caller has locked the rows. Returns the slot of the statement that marks runs without claims as
/// settled.
pub(crate) fn add_end(
    batch: &mut Batch,
    tx: &mut Tx<'_>,
    runs: &[RunRow],
    reason: &str,
    holds: Holds,
) -> Result<Option<Slot>> {
    let topic = match holds {
        Holds::Nothing(_) => Topic::ended,
        Holds::Perhaps => Topic::dead,
    };
    let events = runs.iter().map(|run| Event {
        run: Some(run.name.clone()),
        agent: run.agent.clone(),
        details: Some(serde_json::json!({ "reason": reason })),
        topic: Some(topic(run.agent.as_deref())),
        ..Event::new("run.ended", format!("run/{}", run.name)).states("alive", "ended")
    });
    let events = Event::insert_many(tx, events.collect())?;
    tx.notes.due_changed = true;
    let keys: Vec<i64> = runs.iter().map(|run| run.key).collect();
    batch.add(by_keys!(
        write,
        keys.as_slice(),
        "update run set ended_at = ?2, reason = ?3 where key",
        "and ended_at is null",
        tx.now,
        reason
    ));
    batch.add(events);
    Ok(match holds {
        Holds::Nothing(nouns) => Some(batch.add(nouns.mark_empty(&keys))),
        Holds::Perhaps => None,
    })
}

/// Ends one incarnation whose lease expired, so that its name can be used by a new run. Expiry gives back its items
/// later. It waits up to a second for the row's lock.
pub(crate) async fn end_expired(tx: &mut Tx<'_>, key: i64) -> Result<()> {
    let mut batch = Batch::new();
    batch.add(Stmt::lock(
        "select set_config('fence.lock_timeout', current_setting('lock_timeout'), true),
           set_config('lock_timeout', '1s', true)",
        params![],
    ));
    let expired = batch.add(Stmt::read(
        runs!("where key = ?1 and ended_at is null and expires_at <= ?2 /*pg for update*/"),
        params![key, tx.now],
    ));
    batch.add(Stmt::lock(
        "select set_config('lock_timeout', current_setting('fence.lock_timeout'), true)",
        params![],
    ));
    let mut answers = tx.send(batch).await.map_err(|e| match e.code() {
        Code::Unavailable => {
            Error::unavailable("this run's lease is over, and another transaction is using the run")
                .hint("try again in a moment, or act under another run: --run or FENCE_RUN names it")
        }
        _ => e,
    })?;
    let runs = answers.take(expired).rows.iter().map(RunRow::read).collect::<Result<Vec<_>>>()?;
    if !runs.is_empty() {
        end(tx, &runs, LAPSED).await?;
    }
    Ok(())
}
