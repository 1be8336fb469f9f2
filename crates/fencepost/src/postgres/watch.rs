//! Is there something new in the log? Until nodes tell each other (NOTIFY), this is asked again and again while
//! someone waits.

use super::Postgres;
use crate::{error::Result, params, tx::Stmt};
use std::sync::PoisonError;

impl Postgres {
    /// Since this was last asked (the first time: perhaps). One statement, however many wait.
    ///
    /// Numbers are given out before they are committed, so the end of the log says nothing. A snapshot does: it
    /// names every transaction that had been committed. New are the events of those that it did not see, and, for
    /// who follows the log, those that were held back then because an older transaction was still running.
    pub async fn has_news(&self) -> Result<bool> {
        let session = self.session().await?;
        let before = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let ask = Stmt::new(
            "select pg_current_snapshot()::text as seen,
               case
                 when ?1::text is null then true
                 when ?1::text = pg_current_snapshot()::text then false
                 else exists (
                   select 1 from event
                   where xact >= pg_snapshot_xmin(?1::text::pg_snapshot)::text::bigint
                   and (not pg_visible_in_snapshot(xact::text::xid8, ?1::text::pg_snapshot)
                     or xact < pg_snapshot_xmin(pg_current_snapshot())::text::bigint))
               end as news",
            params![before],
        );
        let rows = session.pipeline(&[ask]).await?.remove(0).rows;
        let news = rows[0].get("news")?;
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(rows[0].get("seen")?);
        Ok(news)
    }
}
