//! Giving back what the dead held, and waking what slept: in bounded batches, before a claim looks.

use super::{RunRow, end::end, runs};
use crate::{
    agent, channel,
    error::Result,
    lock, mail, params, task,
    tx::{Stmt, Tx, by_keys},
};

/// Runs ended, and items given back, in one go. A caller that must look again does another batch.
const RUNS: i64 = 64;
pub(crate) const ITEMS: i64 = 256;

/// One bounded batch of everything that is due. Gives how many things changed.
pub(crate) async fn sweep(tx: &mut Tx<'_>) -> Result<u64> {
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
        end(tx, &lapsed, "lapsed").await?;
    }
    let mut changed = lapsed.len() as u64;
    changed += give_back(tx).await?;
    changed += task::lapse::end_capped(tx).await?;
    changed += lock::lapse::end_capped(tx).await?;
    changed += mail::lapse::end_capped(tx).await?;
    changed += channel::lapse::end_capped(tx).await?;
    changed += agent::recall::strand(tx).await?;
    changed += task::wake_delayed(tx).await?;
    changed += mail::wake_delayed(tx).await?;
    Ok(changed)
}

/// One batch of what ended runs still hold. A run stays due until it holds nothing.
pub(crate) async fn give_back(tx: &mut Tx<'_>) -> Result<u64> {
    let dead = tx
        .query(
            "select key from run where ended_at is not null and settled = 0 order by key limit ?1
             /*pg for update skip locked*/",
            params![RUNS],
        )
        .await?;
    let dead = dead.iter().map(|row| row.get("key")).collect::<Result<Vec<i64>>>()?;
    if dead.is_empty() {
        return Ok(0);
    }
    // Most let go of everything before they end.
    let empty_handed = tx.one(settle(&dead)).await?.affected;
    if empty_handed == dead.len() as u64 {
        return Ok(empty_handed);
    }
    let given = task::lapse::of_runs(tx, &dead).await?
        + mail::lapse::of_runs(tx, &dead).await?
        + channel::lapse::of_runs(tx, &dead).await?
        + lock::lapse::of_runs(tx, &dead).await?;
    Ok(empty_handed + given + tx.one(settle(&dead)).await?.affected)
}

/// Those of them that hold nothing are settled.
pub(super) fn settle(dead: &[i64]) -> Stmt {
    by_keys!(
        dead,
        "update run set settled = 1 where key",
        "and settled = 0 and not exists (select 1 from task where task.run = run.key)
         and not exists (select 1 from message where message.run = run.key)
         and not exists (select 1 from reader where reader.run = run.key)
         and not exists (select 1 from lock where lock.run = run.key)"
    )
}
