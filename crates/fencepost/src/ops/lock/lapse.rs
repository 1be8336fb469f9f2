//! Locks whose holder is dead, or whose claim reached its own limit, become free again.

use super::{Record, columns};
use crate::{
    db::{Stmt, Tx, key_set, set},
    error::Result,
    lease::{expiry::ITEMS, hold::write_logged},
    log::Event,
    params,
};

/// One batch of the locks of these ended runs.
pub(crate) async fn of_runs(tx: &mut Tx<'_>, runs: &[i64]) -> Result<u64> {
    let rows = tx
        .query(
            columns!(
                "where lock.run in (select cast(value ->> 'k' as bigint) from json_each(?1)) limit ?2
                 /*pg for update of lock skip locked*/"
            ),
            params![key_set(runs.iter().copied()), ITEMS],
        )
        .await?;
    free(tx, rows.into_iter().map(Record::read).collect::<Result<_>>()?).await
}

/// One batch of claims that reached their own limit (`max_ms`).
pub(crate) async fn at_limit(tx: &mut Tx<'_>) -> Result<u64> {
    let rows = tx
        .query(
            columns!("where lock.until_at <= ?1 order by lock.until_at limit ?2 /*pg for update of lock skip locked*/"),
            params![tx.now, ITEMS],
        )
        .await?;
    free(tx, rows.into_iter().map(Record::read).collect::<Result<_>>()?).await
}

async fn free(tx: &mut Tx<'_>, locks: Vec<Record>) -> Result<u64> {
    if locks.is_empty() {
        return Ok(0);
    }
    let freed: Vec<_> = locks.iter().map(|lock| (lock, lock.free("lapse"))).collect();
    let rows = freed.iter().map(|(lock, free)| {
        let last = free.last.as_ref();
        serde_json::json!({ "name": lock.name, "fence": lock.fence, "digest": last.map(|last| &last.digest) })
    });
    let update = Stmt::write(
        "update lock set run = null, until_at = null, claimed_at = null, last_fence = fence, last_verb = 'lapse',
           last_digest = item.value ->> 'digest', updated_at = ?2
         from json_each(?1) as item
         where lock.name = item.value ->> 'name' and lock.fence = cast(item.value ->> 'fence' as bigint)",
        params![set(rows)?, tx.now],
    );
    let events = freed.iter().map(|(lock, free)| free.event("lock.lapsed", lock)).collect();
    let events = Event::insert_many(tx, events)?;
    write_logged(tx, update, events).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        lock::{self, load},
        testing::{on_both, rows, try_write, undo},
    };

    #[tokio::test]
    async fn a_batch_writes_the_rows_that_save_writes() {
        on_both(
            |tx| Box::pin(async { tx.call(lock::Claim::new("deploy", "r")).await.map(drop) }),
            |tx| {
                Box::pin(async {
                    let held = load(tx, "deploy").await?.expect("a lock");
                    try_write(tx).await?;
                    assert_eq!(free(tx, vec![held.clone()]).await?, 1);
                    let by_batch = rows(tx, "*", "lock").await?;
                    undo(tx).await?;
                    assert_ne!(rows(tx, "*", "lock").await?, by_batch);
                    tx.one(held.free("lapse").save(&held, None, tx.now)).await?;
                    assert_eq!(rows(tx, "*", "lock").await?, by_batch);
                    Ok(())
                })
            },
        )
        .await;
    }
}
