//! Removes the ids of old deliveries, once no provider repeats them any more.

use crate::{db::Tx, error::Result, params};

/// Removes one batch and returns its size.
pub(crate) async fn prune(tx: &mut Tx<'_>, before: i64, batch: i64) -> Result<u64> {
    tx.execute(
        "delete from delivery where (source, id) in (
           select source, id from delivery where at < ?1 order by at limit ?2 /*pg for update skip locked*/)",
        params![before, batch],
    )
    .await
}
