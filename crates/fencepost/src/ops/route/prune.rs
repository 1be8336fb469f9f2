//! What was delivered is forgotten when no provider asks any more.

use crate::{db::Tx, error::Result, params};

/// One batch; gives how many.
pub(crate) async fn prune(tx: &mut Tx<'_>, before: i64, batch: i64) -> Result<u64> {
    tx.execute(
        "delete from delivery where (source, id) in (
           select source, id from delivery where at < ?1 order by at limit ?2 /*pg for update skip locked*/)",
        params![before, batch],
    )
    .await
}
