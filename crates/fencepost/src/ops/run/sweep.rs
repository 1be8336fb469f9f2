//! Expiry: ends lapsed runs, gives back what ended runs and expired claims held, wakes what was delayed.
//!
//! It is done in bounded batches, before a claim looks. A batch never waits for a lock: rows and lanes that another
//! transaction has are left to a later batch.

use super::{LAPSED, RunRow, end::end, runs};
use crate::{
    db::tx::{Place, Stmt, Tx, by_keys},
    error::Result,
    ops::{agent, channel, lock, mail, task},
    params,
};

/// Runs ended, and items given back, in one batch. A caller that must look again does another.
const RUNS: i64 = 64;
pub(crate) const ITEMS: i64 = 256;

/// One bounded batch of everything that is due. Gives how many things changed.
pub(crate) async fn sweep(tx: &mut Tx<'_>) -> Result<u64> {
    if tx.place == Place::Own {
        // Nothing below waits for a row, but a table can be locked as a whole, and a database can be slow.
        tx.one(Stmt::lock(
            "select set_config('lock_timeout', '1s', true), set_config('statement_timeout', '5s', true)",
            params![],
        ))
        .await?;
    }
    let rows = tx
        .query(
            runs!(
                "where ended_at is null and expires_at <= ?1 order by expires_at limit ?2
             /*pg for update skip locked*/"
            ),
            params![tx.now, RUNS],
        )
        .await?;
    let lapsed = rows.iter().map(RunRow::read).collect::<Result<Vec<_>>>()?;
    if !lapsed.is_empty() {
        end(tx, &lapsed, LAPSED).await?;
    }
    let mut changed = lapsed.len() as u64;
    changed += give_back(tx).await?;
    changed += task::lapse::end_capped(tx).await?;
    changed += lock::lapse::end_capped(tx).await?;
    changed += mail::lapse::end_capped(tx).await?;
    changed += channel::lapse::end_capped(tx).await?;
    changed += task::wake_delayed(tx).await?;
    changed += mail::wake_delayed(tx).await?;
    // Last, because it takes what the others gave back to an agent. `task::Now` applies the rules in the same order.
    changed += agent::recall::strand(tx).await?;
    Ok(changed)
}

/// One batch of what ended runs still hold. A run stays due until it holds nothing. Runs whose items are all locked do
/// not hide those after them: if a page of runs changed nothing, the next page is tried.
pub(crate) async fn give_back(tx: &mut Tx<'_>) -> Result<u64> {
    let mut after = 0;
    loop {
        let dead = tx
            .query(
                "select key from run where ended_at is not null and settled = 0 and key > ?1 order by key limit ?2",
                params![after, RUNS],
            )
            .await?;
        let dead = dead.iter().map(|row| row.get("key")).collect::<Result<Vec<i64>>>()?;
        let Some(last) = dead.last() else { return Ok(0) };
        after = *last;
        let changed = give_back_of(tx, &dead).await?;
        if changed > 0 {
            return Ok(changed);
        }
    }
}

async fn give_back_of(tx: &mut Tx<'_>, dead: &[i64]) -> Result<u64> {
    // Most let go of everything before they end.
    let empty_handed = tx.one(settle(dead)).await?.affected;
    if empty_handed == dead.len() as u64 {
        return Ok(empty_handed);
    }
    let given = task::lapse::of_runs(tx, dead).await?
        + mail::lapse::of_runs(tx, dead).await?
        + channel::lapse::of_runs(tx, dead).await?
        + lock::lapse::of_runs(tx, dead).await?;
    Ok(empty_handed + given + tx.one(settle(dead)).await?.affected)
}

/// Those of them that hold nothing are settled.
pub(super) fn settle(dead: &[i64]) -> Stmt {
    by_keys!(
        dead,
        "update run set settled = 1 where key in (select key from run where settled = 0
           and not exists (select 1 from task where task.run = run.key)
           and not exists (select 1 from message where message.run = run.key)
           and not exists (select 1 from reader where reader.run = run.key)
           and not exists (select 1 from lock where lock.run = run.key) and key",
        "/*pg for update skip locked*/)"
    )
}
