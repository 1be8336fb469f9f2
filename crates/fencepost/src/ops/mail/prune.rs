//! Removes finished messages that are past their retention time, or above the number that their mailbox keeps.

use super::mailboxes;
use crate::{
    clock::Time,
    db::{Batch, Row, Stmt, Tx, key_set},
    error::Result,
    params,
};

/// Removes one batch and returns its size. A message id is never used again, so its fence need not be remembered. `now`
/// leaves out idle time that does not count and is not stored in `gap` yet.
pub(crate) async fn prune(tx: &mut Tx<'_>, now: Time, most: i64) -> Result<u64> {
    let mut ids = keys(
        tx.query(
            "select id from message
             where prune_at <= ?1 and prune_at + (
               select cast(coalesce(sum(ms), 0) as bigint) from gap where gap.at > message.finished_at) <= ?1
             order by prune_at limit ?2 /*pg for update skip locked*/",
            params![now, most],
        )
        .await?,
    )?;
    let counted = tx.query(mailboxes!("where retain_count is not null order by name"), params![]).await?;
    for row in counted {
        let left = most - ids.len() as i64;
        if left == 0 {
            break;
        }
        let (name, keep): (String, i64) = (row.get("name")?, row.get("retain_count")?);
        // A message with a key is kept for as long as the key may be repeated. A failed message is kept for its full
        // retention time, so that a person can look at it.
        let over = tx
            .query(
                "select id from message where finished_at is not null and mailbox = ?1 and status = 'processed'
                 and (idempotency_key is null or prune_at + (
                   select cast(coalesce(sum(ms), 0) as bigint) from gap where gap.at > message.finished_at) <= ?4) and (finished_at, id) < (
                   select finished_at, id from message
                   where finished_at is not null and mailbox = ?1 and status = 'processed'
                   order by finished_at desc, id desc limit 1 offset ?2)
                 order by finished_at, id limit ?3 /*pg for update skip locked*/",
                params![name, keep - 1, left, now],
            )
            .await?;
        ids.extend(keys(over)?);
    }
    if ids.is_empty() {
        return Ok(0);
    }
    ids.sort_unstable();
    ids.dedup();
    let keys = key_set(ids);
    let mut batch = Batch::new();
    batch.add(Stmt::write(
        "delete from message_output where message in (select cast(value ->> 'k' as bigint) from json_each(?1))",
        params![keys.clone()],
    ));
    batch.add(Stmt::write(
        "delete from message_doc where message in (select cast(value ->> 'k' as bigint) from json_each(?1))",
        params![keys.clone()],
    ));
    let messages = batch.add(Stmt::write(
        "delete from message where id in (select cast(value ->> 'k' as bigint) from json_each(?1))",
        params![keys],
    ));
    Ok(tx.send(batch).await?.affected(messages))
}

fn keys(rows: Vec<Row>) -> Result<Vec<i64>> {
    rows.iter().map(|row| row.get("id")).collect()
}
