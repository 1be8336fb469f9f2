//! The news in the log on SQLite. The watcher asks a hundred times a second while a call waits, so a question must cost
//! next to nothing.

use super::{OpenedFile, open, sqlite_error};
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

/// Asks the log for news, on a connection of its own: `data_version` reports only the commits of other connections.
pub(super) struct LogWatch {
    path: PathBuf,
    opened_file: Arc<OpenedFile>,
    stats: Arc<Stats>,
    /// The state of the log at the last question; `None` before the first, and after a failure.
    last: Option<LogState>,
}

struct LogState {
    conn: Connection,
    /// It changes with every commit of another connection that wrote something.
    data_version: i64,
    /// The last event's number. A commit that writes no event, such as a renewal, changes no waiter's answer.
    last_event: i64,
}

impl std::fmt::Debug for LogWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogWatch").field("path", &self.path).finish_non_exhaustive()
    }
}

impl LogWatch {
    pub fn new(path: &Path, opened_file: Arc<OpenedFile>, stats: Arc<Stats>) -> Self {
        Self { path: path.to_owned(), opened_file, stats, last: None }
    }

    /// The news since the last question. At the first question, and after a failure, earlier events are unknown, so the
    /// news concerns every waiter.
    ///
    /// While nothing is written, only `data_version` is read. That reads no table, only a word of the memory that all
    /// processes share, and it is not counted as a statement.
    pub fn news(&mut self) -> Result<News> {
        self.opened_file.check_path()?;
        let Some(mut last) = self.last.take() else {
            let conn = open::reader(&self.path, Durability::Full)?;
            let data_version = data_version(&conn)?;
            self.last = Some(LogState { data_version, last_event: self.last_event(&conn)?, conn });
            return Ok(News::OfAll);
        };
        let data_version = data_version(&last.conn)?;
        let mut news = News::Nothing;
        if data_version != last.data_version {
            migrate::refuse_changed(int(&last.conn, "select schema_version from fleet")?)?;
            let last_event = self.last_event(&last.conn)?;
            if last_event > last.last_event {
                news = self.topics(&last.conn, last.last_event)?;
            } else if last_event < last.last_event {
                // A backup was copied into the file.
                news = News::OfAll;
            }
            (last.data_version, last.last_event) = (data_version, last_event);
        }
        self.last = Some(last);
        Ok(news)
    }

    /// The topics of the events after this one.
    fn topics(&self, conn: &Connection, after: i64) -> Result<News> {
        self.stats.statement();
        let mut prepared =
            conn.prepare_cached("select distinct topic from event where id > ?1").map_err(sqlite_error)?;
        let topics =
            prepared.query_map([after], |row| row.get::<_, Option<String>>(0)).map_err(sqlite_error)?;
        topics.map(|topic| topic.map(Topic::read)).collect::<Result<_, _>>().map_err(sqlite_error)
    }

    fn last_event(&self, conn: &Connection) -> Result<i64> {
        self.stats.statement();
        int(conn, "select coalesce(max(id), 0) from event")
    }
}

fn data_version(conn: &Connection) -> Result<i64> {
    int(conn, "pragma data_version")
}

fn int(conn: &Connection, sql: &str) -> Result<i64> {
    let mut prepared = conn.prepare_cached(sql).map_err(sqlite_error)?;
    prepared.query_row([], |row| row.get(0)).map_err(sqlite_error)
}
