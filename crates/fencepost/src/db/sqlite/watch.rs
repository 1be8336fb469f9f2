//! Is there something new in the log? Asked again and again while someone waits, so it must cost next to nothing.

use super::{Identity, open, sqlite_error};
use crate::{
    db::{News, migrate, options::Durability, stats::Stats},
    error::Result,
    topic::Topic,
};
use rusqlite::Connection;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// A connection of its own: to it, the commits of this process are another's, as those of other processes are.
pub(super) struct Watch {
    path: PathBuf,
    identity: Arc<Identity>,
    stats: Arc<Stats>,
    seen: Option<Seen>,
}

struct Seen {
    conn: Connection,
    /// Changes with every commit of another connection that wrote something.
    version: i64,
    /// The last event's number. A renewed lease is a commit too, but makes nobody's answer another.
    end: i64,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Watch {
    pub fn new(path: &Path, identity: Arc<Identity>, stats: Arc<Stats>) -> Self {
        Self { path: path.to_owned(), identity, stats, seen: None }
    }

    /// Since this was last asked. What was missed before the first time, or by a connection that failed, is not
    /// known, so it may concern everyone.
    ///
    /// While nothing is written, all that is asked is `data_version`: no table is read, only a word of the memory
    /// that all processes share. It is not counted as a statement.
    pub fn news(&mut self) -> Result<News> {
        self.identity.check_file()?;
        let Some(mut seen) = self.seen.take() else {
            let conn = open::reader(&self.path, Durability::Full)?;
            let version = version(&conn)?;
            self.seen = Some(Seen { version, end: self.end(&conn)?, conn });
            return Ok(News::OfAll);
        };
        let version = version(&seen.conn)?;
        let mut news = News::Nothing;
        if version != seen.version {
            migrate::refuse_changed(int(&seen.conn, "select schema_version from fleet")?)?;
            let end = self.end(&seen.conn)?;
            if end > seen.end {
                news = self.topics(&seen.conn, seen.end)?;
            } else if end < seen.end {
                // The file is another: a backup was put in its place.
                news = News::OfAll;
            }
            (seen.version, seen.end) = (version, end);
        }
        self.seen = Some(seen);
        Ok(news)
    }

    /// Whom the events after this one could concern.
    fn topics(&self, conn: &Connection, after: i64) -> Result<News> {
        self.stats.statement();
        let mut prepared =
            conn.prepare_cached("select distinct topic from event where id > ?1").map_err(sqlite_error)?;
        let topics =
            prepared.query_map([after], |row| row.get::<_, Option<String>>(0)).map_err(sqlite_error)?;
        topics.map(|topic| topic.map(Topic::read)).collect::<Result<_, _>>().map_err(sqlite_error)
    }

    fn end(&self, conn: &Connection) -> Result<i64> {
        self.stats.statement();
        int(conn, "select coalesce(max(id), 0) from event")
    }
}

fn version(conn: &Connection) -> Result<i64> {
    int(conn, "pragma data_version")
}

fn int(conn: &Connection, sql: &str) -> Result<i64> {
    let mut prepared = conn.prepare_cached(sql).map_err(sqlite_error)?;
    prepared.query_row([], |row| row.get(0)).map_err(sqlite_error)
}
