//! Is there something new in the log? Asked when a notice says so (see [`super::notice`]), and at a slow pace in case
//! one was lost.

use super::{Postgres, elsewhere, restored_elsewhere};
use crate::{
    db::{News, Pace, Stmt, migrate, options::Fallback},
    error::{Error, Result},
    params,
    sync::lock,
    topic::Topic,
};
use std::sync::atomic::Ordering;
use tokio::time::timeout;

/// Past this many events it is not told apart whom they concern.
const RECENT: i64 = 10_000;

/// What was committed at a moment: all below `xmin`, and what is below `xmax` and was not running.
#[derive(Debug, PartialEq, Eq)]
struct Snapshot {
    xmin: i64,
    xmax: i64,
    /// As a list with commas.
    running: String,
}

impl Snapshot {
    fn read(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            [xmin, xmax, running] => Ok(Self {
                xmin: xmin.parse().map_err(Error::internal)?,
                xmax: xmax.parse().map_err(Error::internal)?,
                running: running.into(),
            }),
            _ => Err(Error::internal(format!("`{text}` is not a snapshot"))),
        }
    }
}

impl Postgres {
    /// Since this was last asked (the first time: perhaps). One statement, however many wait.
    ///
    /// Numbers are given out before they are committed, so the end of the log says nothing. A snapshot does: it
    /// names every transaction that had been committed. New are the events of those that it did not see, and, for
    /// who follows the log, those that were held back then because an older transaction was still running.
    pub async fn news(&self) -> Result<News> {
        let limit = self.options.call_limit;
        let asked = timeout(limit, self.ask()).await;
        asked.unwrap_or_else(|_| Err(Error::unavailable(format!("PostgreSQL did not answer in {limit:?}"))))
    }

    async fn ask(&self) -> Result<News> {
        let session = self.session().await?;
        let before = lock(&self.seen).clone();
        let seen = before.as_deref().map(Snapshot::read).transpose()?;
        // Each in the order of an index and with an end: the planner takes a third of the log to be new, and would read
        // it from its beginning (1.1 ms with 5,000 events; now 0.05 ms, however many there are).
        let ask = Stmt::read(
            concat!(
                "select pg_current_snapshot()::text as seen, (select schema_version from fleet) as version,
               (select ",
                elsewhere!(),
                " from fleet) as elsewhere,
               exists (
                 select 1 from (
                   select ord from event
                   where ord >= ?1 and ord < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
                   order by ord, id limit 1) as first
               ) as readable,
               (select count(*) from (
                 select 1 from event where xact >= ?2 order by xact, id limit ?4) as fresh) as fresh,
               (select json_agg(distinct topic)::text from (
                 (select topic from event where xact >= ?2 order by xact, id limit ?4)
                 union all
                 select topic from event where xact = any(string_to_array(?3, ',')::bigint[])) as fresh) as topics,
               coalesce((select ord from event order by ord desc, id desc limit 1), 0)
                 >= pg_snapshot_xmin(pg_current_snapshot())::text::bigint as held_back"
            ),
            params![
                seen.as_ref().map(|seen| seen.xmin),
                seen.as_ref().map(|seen| seen.xmax),
                seen.as_ref().map(|seen| seen.running.as_str()),
                RECENT
            ],
        );
        // If it is not waited for any longer, its connection is closed.
        session.open.store(true, Ordering::SeqCst);
        let rows = session.pipeline(&[ask]).await?.remove(0).rows;
        session.open.store(false, Ordering::SeqCst);
        migrate::refuse_changed(rows[0].get("version")?)?;
        if rows[0].get("elsewhere")? {
            return Err(restored_elsewhere());
        }
        let topics = rows[0].get::<Option<String>>("topics")?;
        // Of what was held back those who take things knew already: it concerns only those who follow the log.
        let news = match (rows[0].get::<bool>("readable")?, topics) {
            _ if seen.is_none() || rows[0].get::<i64>("fresh")? == RECENT => News::OfAll,
            (false, None) => News::Nothing,
            (_, topics) => {
                let topics: Vec<Option<String>> = topics
                    .map_or(Ok(Vec::new()), |list| serde_json::from_str(&list))
                    .map_err(Error::internal)?;
                topics.into_iter().map(Topic::read).collect()
            }
        };
        self.held_back.store(rows[0].get("held_back")?, Ordering::SeqCst);
        *lock(&self.seen) = Some(rows[0].get("seen")?);
        Ok(news)
    }

    /// How soon to ask again. By default every 3 s, in case a notification was lost; every 5 to 500 ms while none can
    /// arrive: there is no connection to listen on, or events are held back until a transaction that is none of ours is
    /// over, of which nobody notifies us.
    pub fn pace(&self) -> Pace {
        let Fallback { poll, wake_all } = self.options.fallback;
        if self.notices.is_listening() && !self.held_back.load(Ordering::SeqCst) {
            return Pace { least: poll, most: poll, wake_all };
        }
        Pace { least: poll / 600, most: poll / 6, wake_all }
    }

    pub fn listen(&self) {
        self.notices.listen();
    }

    pub async fn notified(&self) {
        self.notices.notified().await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_read() {
        let read = |text| Snapshot::read(text).ok();
        let snapshot = |xmin, xmax, running: &str| Some(Snapshot { xmin, xmax, running: running.into() });
        assert_eq!(read("740:745:741,743"), snapshot(740, 745, "741,743"));
        assert_eq!(read("740:740:"), snapshot(740, 740, ""));
        assert_eq!((read("740:740"), read("x:1:")), (None, None));
    }
}
