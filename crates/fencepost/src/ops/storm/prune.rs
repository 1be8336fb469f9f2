//! Removes old causes, triggers and wake-ups.

use crate::{
    clock::Time,
    db::{Batch, Stmt, Tx},
    error::Result,
    limits::TTL_MAX,
    params,
};

/// Removes one batch of each. Rows that a window can still count stay, however short the history is.
pub(crate) async fn prune(tx: &mut Tx<'_>, before: Time, most: i64) -> Result<()> {
    let before = before.min(Time(tx.now.0 - TTL_MAX.0));
    let deletes = [
        "delete from caused where item in (select item from caused where at < ?1 order by at limit ?2)",
        "delete from triggered where run in (select run from triggered where at < ?1 order by at limit ?2)",
        "delete from wakeup where message in (select message from wakeup where at < ?1 and not exists (
           select 1 from message where message.id = wakeup.message and message.finished_at is null)
         order by at limit ?2)",
    ];
    tx.send(deletes.into_iter().map(|sql| Stmt::write(sql, params![before, most])).collect::<Batch>())
        .await
        .map(drop)
}
