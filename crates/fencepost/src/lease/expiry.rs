//! Expiry: ends runs whose lease expired, gives back the items of ended runs and expired claims, and ends delays.
//!
//! It runs in bounded batches: in the prelude of a claim, before the claim searches; when a waiting call meets a deadline;
//! and as a job of a server. A batch never waits for a lock: it leaves locked rows and lanes to a later batch.
//!
//! The noun's own rule decides what becomes of an item: `ops/NOUN/lapse.rs`.

use super::{
    Nouns,
    ending::end,
    run::{LAPSED, runs},
};
use crate::{
    db::{RunRow, Scope, Stmt, Tx},
    error::Result,
    params,
};

/// Limits of one batch: runs ended, and items given back. A caller that must search again runs another batch.
const RUNS: i64 = 64;
pub(crate) const ITEMS: i64 = 256;

/// One bounded batch of everything that is due. Returns the number of changes.
pub(crate) async fn sweep(tx: &mut Tx<'_>, nouns: &'static Nouns) -> Result<u64> {
    if tx.opening.scope == Scope::Call {
        // Nothing below waits for a row lock, but a table can be locked as a whole, and a database can be slow.
        let limits =
            "select set_config('lock_timeout', '1s', true), set_config('statement_timeout', '5s', true)";
        tx.one(Stmt::read(limits, params![]).only_on_postgres()).await?;
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
    let expired = rows.iter().map(RunRow::read).collect::<Result<Vec<_>>>()?;
    if !expired.is_empty() {
        end(tx, &expired, LAPSED).await?;
    }
    let mut changed = expired.len() as u64;
    changed += give_back(tx, nouns).await?;
    for noun in nouns.iter() {
        changed += noun.lapse_at_limit(tx).await?;
    }
    // Last, because it may change items that the steps before gave back. Reads apply the rules in the same order.
    for noun in nouns.iter() {
        changed += noun.end_delays(tx).await?;
    }
    Ok(changed)
}

/// One batch of items that ended runs still hold. A run stays due until it holds nothing. If a page of runs changed
/// nothing, because all their items are locked, the next page is tried.
pub(crate) async fn give_back(tx: &mut Tx<'_>, nouns: &'static Nouns) -> Result<u64> {
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
        let changed = give_back_of(tx, nouns, &dead).await?;
        if changed > 0 {
            return Ok(changed);
        }
    }
}

async fn give_back_of(tx: &mut Tx<'_>, nouns: &'static Nouns, dead: &[i64]) -> Result<u64> {
    // Most runs release everything before they end.
    let settled = tx.one(nouns.mark_empty(dead)).await?.affected;
    if settled == dead.len() as u64 {
        return Ok(settled);
    }
    let mut changed = settled;
    for noun in nouns.iter() {
        changed += noun.lapse_of_runs(tx, dead).await?;
    }
    Ok(changed + tx.one(nouns.mark_empty(dead)).await?.affected)
}
