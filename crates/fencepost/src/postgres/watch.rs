//! Is there something new in the log? Asked when a notice says so (see [`super::notice`]), and at a slow pace in case
//! one was lost.

use super::Postgres;
use crate::{
    error::{Error, Result},
    event::Topic,
    params,
    tx::Stmt,
    wait::{News, Pace},
};
use std::sync::{PoisonError, atomic::Ordering};

/// Past this many events it is not told apart whom they concern.
const RECENT: i64 = 10_000;

impl Postgres {
    /// Since this was last asked (the first time: perhaps). One statement, however many wait.
    ///
    /// Numbers are given out before they are committed, so the end of the log says nothing. A snapshot does: it
    /// names every transaction that had been committed. New are the events of those that it did not see, and, for
    /// who follows the log, those that were held back then because an older transaction was still running.
    pub async fn news(&self) -> Result<News> {
        let session = self.session().await?;
        let before = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let xmin: Option<i64> = before.as_ref().and_then(|seen| seen.split(':').next()?.parse().ok());
        // In the index's order and not all of them: the planner takes a third of the log to be new, and would read
        // it from its beginning (1.1 ms with 5,000 events; now 0.1 ms, however many there are).
        let ask = Stmt::new(
            "with recent as materialized (
               select xact, topic from event
               where xact >= coalesce(?2::bigint, pg_snapshot_xmin(pg_current_snapshot())::text::bigint)
               order by xact, id limit ?3)
             select pg_current_snapshot()::text as seen,
               (select count(*) from recent) as recent,
               exists (
                 select 1 from recent where not pg_visible_in_snapshot(xact::text::xid8, ?1::text::pg_snapshot)
                 or xact < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
               ) as news,
               (select json_agg(distinct topic)::text from recent
                where not pg_visible_in_snapshot(xact::text::xid8, ?1::text::pg_snapshot)) as topics,
               exists (
                 select 1 from recent where xact >= pg_snapshot_xmin(pg_current_snapshot())::text::bigint
               ) as held_back",
            params![before.clone(), xmin, RECENT],
        );
        let rows = session.pipeline(&[ask]).await?.remove(0).rows;
        let uncounted = rows[0].get::<i64>("recent")? == RECENT;
        // Of what was held back those who take things knew already: it concerns only those who follow the log.
        let news = match (rows[0].get("news")?, rows[0].get::<Option<String>>("topics")?) {
            _ if before.is_none() || uncounted => News::OfAll,
            (false, _) => News::Nothing,
            (true, topics) => {
                let topics: Vec<Option<String>> = topics
                    .map_or(Ok(Vec::new()), |list| serde_json::from_str(&list))
                    .map_err(Error::internal)?;
                topics.into_iter().map(Topic::read).collect()
            }
        };
        let held_back = uncounted || rows[0].get("held_back")?;
        self.held_back.store(held_back, Ordering::SeqCst);
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(rows[0].get("seen")?);
        Ok(news)
    }

    /// How soon to ask again if nobody tells. Events that are held back become readable when a transaction that is
    /// none of ours is over, and of that nobody tells.
    pub fn pace(&self) -> Pace {
        if self.notices.is_listening() && !self.held_back.load(Ordering::SeqCst) {
            Pace::POSTGRES
        } else {
            Pace::POSTGRES_UNTOLD
        }
    }

    pub fn listen(&self) {
        self.notices.listen();
    }

    pub async fn told(&self) {
        self.notices.told().await;
    }

    pub async fn flush(&self) {
        self.notices.flush().await;
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.notices.stop();
    }
}
