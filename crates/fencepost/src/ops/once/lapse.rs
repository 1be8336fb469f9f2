//! Effects whose holder is dead, or whose claim reached its own limit, are in doubt.

use super::record::{Record, columns};
use crate::{
    db::{Stmt, Tx, key_set, set},
    error::Result,
    lease::{expiry::ITEMS, hold::write_logged},
    log::Event,
    params,
};

/// One batch of the effects of these ended runs.
pub(crate) async fn of_runs(tx: &mut Tx<'_>, runs: &[i64]) -> Result<u64> {
    let rows = tx
        .query(
            columns!(
                "where effect.run in (select cast(value ->> 'k' as bigint) from json_each(?1)) limit ?2
                 /*pg for update of effect skip locked*/"
            ),
            params![key_set(runs.iter().copied()), ITEMS],
        )
        .await?;
    doubt(tx, Record::read_all(rows)?).await
}

/// One batch of claims that reached their own limit (`max_ms`).
pub(crate) async fn at_limit(tx: &mut Tx<'_>) -> Result<u64> {
    let rows = tx
        .query(
            columns!(
                "where effect.until_at <= ?1 order by effect.until_at limit ?2
                 /*pg for update of effect skip locked*/"
            ),
            params![tx.now, ITEMS],
        )
        .await?;
    doubt(tx, Record::read_all(rows)?).await
}

async fn doubt(tx: &mut Tx<'_>, effects: Vec<Record>) -> Result<u64> {
    let lost = |effect: Record| {
        let reason = effect.hold.as_ref().map(|hold| hold.lost(tx.now).to_owned())?;
        let after = effect.doubt("lapse", reason, tx.now);
        Some((effect, after))
    };
    let lost: Vec<_> = effects.into_iter().filter_map(lost).collect();
    if lost.is_empty() {
        return Ok(0);
    }
    let rows = lost.iter().map(|(before, after)| {
        serde_json::json!({
            "name": before.name, "fence": before.fence, "digest": after.last.as_ref().map(|last| &last.digest),
            "reason": after.reason, "run": after.begun_run, "agent": after.begun_agent, "at": after.begun_at.0,
        })
    });
    let update = Stmt::write(
        "update effect set status = 'in_doubt', run = null, until_at = null, claimed_at = null, last_fence = fence,
           last_verb = 'lapse', last_digest = item.value ->> 'digest', begun_run = item.value ->> 'run',
           begun_agent = item.value ->> 'agent', begun_at = cast(item.value ->> 'at' as bigint), source = null,
           exit_code = null, note = null, reason = item.value ->> 'reason', updated_at = ?2
         from json_each(?1) as item
         where effect.name = item.value ->> 'name' and effect.fence = cast(item.value ->> 'fence' as bigint)",
        params![set(rows)?, tx.now],
    );
    let events = lost
        .iter()
        .map(|(before, after)| after.event("once.lapsed", before).because(after.reason.as_deref()));
    let events = Event::insert_many(tx, events.collect())?;
    write_logged(tx, update, events).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        once::{self, record::load},
        testing::{on_both, rows, try_write, undo},
    };

    #[tokio::test]
    async fn a_batch_writes_the_rows_that_save_writes() {
        on_both(
            |tx| {
                Box::pin(async {
                    let token = tx.call(once::Begin::new("mail", "./send", "r")).await?.token()?;
                    tx.call(once::Finish { exit_code: 3, ..once::Finish::new(token) }).await?;
                    let retry = once::Begin { retry_failed: true, ..once::Begin::new("mail", "./send", "s") };
                    tx.call(retry).await.map(drop)
                })
            },
            |tx| {
                Box::pin(async {
                    let held = load(tx, "mail").await?.expect("an effect");
                    try_write(tx).await?;
                    assert_eq!(doubt(tx, vec![held.clone()]).await?, 1);
                    let by_batch = rows(tx, "*", "effect").await?;
                    undo(tx).await?;
                    assert_ne!(rows(tx, "*", "effect").await?, by_batch);
                    let reason = held.hold.as_ref().expect("a claim").lost(tx.now).to_owned();
                    tx.one(held.doubt("lapse", reason, tx.now).save(&held, None, tx.now)).await?;
                    assert_eq!(rows(tx, "*", "effect").await?, by_batch);
                    Ok(())
                })
            },
        )
        .await;
    }
}
