//! Expired claims on mentions: the mentions are unread again.

use super::reader::{Record, columns};
use crate::{
    db::{Stmt, Tx, key_set, set},
    error::Result,
    lease::{expiry::ITEMS, hold::write_logged},
    log::Event,
    params,
};

/// Expires one batch of the mentions that these ended runs hold.
pub(crate) async fn of_runs(tx: &mut Tx<'_>, runs: &[i64]) -> Result<u64> {
    let rows = tx
        .query(
            columns!(
                "where reader.run in (select cast(value ->> 'k' as bigint) from json_each(?1)) limit ?2
                 /*pg for update of reader skip locked*/"
            ),
            params![key_set(runs.iter().copied()), ITEMS],
        )
        .await?;
    free(tx, Record::read_all(rows)?).await
}

/// Expires one batch of claims past their own time limit.
pub(crate) async fn at_limit(tx: &mut Tx<'_>) -> Result<u64> {
    let rows = tx
        .query(
            columns!(
                "where reader.until_at <= ?1 order by reader.until_at limit ?2
                 /*pg for update of reader skip locked*/"
            ),
            params![tx.now, ITEMS],
        )
        .await?;
    free(tx, Record::read_all(rows)?).await
}

async fn free(tx: &mut Tx<'_>, held: Vec<Record>) -> Result<u64> {
    if held.is_empty() {
        return Ok(0);
    }
    let freed = held.iter().map(|held| {
        let mut free = held.free("lapse");
        let given_up = free.fail(held.given);
        (held, free, if given_up { "mentions.failed" } else { "mentions.lapsed" })
    });
    let freed: Vec<_> = freed.collect();
    let rows = freed.iter().map(|(held, free, _)| {
        let last = free.last.as_ref();
        serde_json::json!({
            "agent": held.agent, "channel": held.channel, "fence": held.fence,
            "digest": last.map(|last| &last.digest), "attempts": free.attempts, "failed": free.failed,
        })
    });
    let update = Stmt::write(
        "update reader set run = null, until_at = null, claimed_at = null, given_n = null, last_fence = fence,
           last_verb = 'lapse', last_digest = item.value ->> 'digest', updated_at = ?2,
           attempts = cast(item.value ->> 'attempts' as bigint), failed_n = cast(item.value ->> 'failed' as bigint)
         from json_each(?1) as item
         where reader.agent = item.value ->> 'agent' and reader.channel = item.value ->> 'channel'
         and reader.fence = cast(item.value ->> 'fence' as bigint)",
        params![set(rows)?, tx.now],
    );
    let events = freed.iter().map(|(held, free, kind)| free.event(kind, held)).collect();
    let events = Event::insert_many(tx, events)?;
    write_logged(tx, update, events).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        agent,
        channel::{self, load, reader::ATTEMPTS},
        testing::{on_both, rows, try_write, undo},
    };

    #[tokio::test]
    async fn a_batch_writes_the_rows_that_save_writes() {
        on_both(
            |tx| {
                Box::pin(async {
                    tx.call(agent::Join { agent: "ann".into(), ..Default::default() }).await?;
                    tx.call(channel::Create { channel: "general".into(), ..Default::default() }).await?;
                    let (channel, body) = ("general".into(), "@ann look".into());
                    tx.call(channel::Post { channel, body, ..Default::default() }).await?;
                    let (agent, run) = ("ann".into(), "r".into());
                    tx.call(agent::Poll { agent, run, ..Default::default() }).await.map(drop)
                })
            },
            |tx| {
                Box::pin(async {
                    // The last attempt is given up, the others are not.
                    for attempts in [1, ATTEMPTS] {
                        tx.execute("update reader set attempts = ?1", params![attempts]).await?;
                        let held = load(tx, "ann", "general").await?.expect("a reader");
                        assert!(held.hold.is_some());
                        try_write(tx).await?;
                        assert_eq!(free(tx, vec![held.clone()]).await?, 1);
                        let by_batch = rows(tx, "*", "reader").await?;
                        undo(tx).await?;
                        assert_ne!(rows(tx, "*", "reader").await?, by_batch);
                        let mut free = held.free("lapse");
                        assert_eq!(free.fail(held.given), attempts == ATTEMPTS);
                        tx.one(free.save(&held, None, tx.now)).await?;
                        assert_eq!(rows(tx, "*", "reader").await?, by_batch);
                        undo(tx).await?;
                    }
                    Ok(())
                })
            },
        )
        .await;
    }
}
