//! One connection to SQLite: running statements, converting values and errors.

use super::opened_file::OpenedFile;
use crate::{
    clock::{Millis, Ratchet, Time},
    db::{
        Answer, Due, Row, Stmt, Value,
        about::{Database, Setting},
        options::Options,
        stats::Stats,
    },
    error::{Code, Error, Result},
};
use std::{collections::HashMap, sync::Arc};

/// A connection and the column names of its statements.
pub(crate) struct SqliteConnection {
    pub(super) raw: rusqlite::Connection,
    /// By the address of the statement's text, which is `'static`.
    columns: HashMap<(usize, usize), Arc<[Box<str>]>>,
    pub(super) stats: Arc<Stats>,
    /// Reads the next deadline.
    pub(crate) due: &'static str,
}

impl std::fmt::Debug for SqliteConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteConnection").finish_non_exhaustive()
    }
}

pub(super) struct StoredClock {
    /// How far the wall clock was ahead of this boot's ticks.
    pub ahead: Option<i64>,
    /// The time is not before this one.
    pub least: Option<Time>,
    /// The latest time that was stored.
    pub time: Option<Time>,
    /// The number of times that an operator set the clock right.
    pub resets: i64,
}

impl SqliteConnection {
    pub(super) fn new(raw: rusqlite::Connection, stats: Arc<Stats>, due: &'static str) -> Self {
        Self { raw, columns: HashMap::new(), stats, due }
    }

    pub(crate) fn run(&mut self, statement: &Stmt) -> Result<Answer> {
        if statement.only_postgres() {
            return Ok(Answer::default());
        }
        self.stats.statement();
        let mut prepared = self.raw.prepare_cached(statement.sql).map_err(sqlite_error)?;
        let width = prepared.column_count();
        let params = rusqlite::params_from_iter(&statement.params);
        if width == 0 {
            let affected = prepared.execute(params).map_err(sqlite_error)? as u64;
            return Ok(Answer { rows: Vec::new(), affected });
        }
        let key = (statement.sql.as_ptr() as usize, statement.sql.len());
        let columns = self
            .columns
            .entry(key)
            .or_insert_with(|| prepared.column_names().map(Into::into).collect())
            .clone();
        let mut found = prepared.query(params).map_err(sqlite_error)?;
        let mut rows = Vec::new();
        while let Some(row) = found.next().map_err(sqlite_error)? {
            let values = (0..width)
                .map(|i| row.get_ref(i).map_err(sqlite_error).and_then(value))
                .collect::<Result<_>>()?;
            rows.push(Row::new(columns.clone(), values));
        }
        let affected = rows.len() as u64;
        Ok(Answer { rows, affected })
    }

    pub(super) fn exec(&mut self, sql: &'static str) -> Result<()> {
        self.run(&Stmt::read(sql, vec![])).map(drop)
    }

    pub(crate) fn describe(&mut self) -> Result<Database> {
        let answer = self.run(&Stmt::read(
            "select sqlite_version() as version,
               (select user_version from pragma_user_version) as schema_version,
               (select journal_mode from pragma_journal_mode) as journal_mode,
               (select case synchronous when 0 then 'off' when 1 then 'normal' when 2 then 'full' else 'extra' end
                from pragma_synchronous) as synchronous",
            vec![],
        ))?;
        let row = &answer.rows[0];
        Ok(Database {
            kind: "SQLite".into(),
            version: row.get("version")?,
            schema_version: row.get("schema_version")?,
            durability: vec![
                Setting::new("journal_mode", row.get("journal_mode")?, &["wal"]),
                Setting::new("synchronous", row.get("synchronous")?, &["full", "extra"]),
            ],
        })
    }

    /// The full check takes 1.3 s for 100,000 tasks, the quick check 0.4 s. The quick check misses an index that has
    /// lost a row, and a task that its index has lost is never claimed.
    pub(crate) fn damage(&mut self) -> Result<Vec<String>> {
        let check = "select integrity_check as found from pragma_integrity_check limit 20";
        let found = self.run(&Stmt::read(check, vec![]))?.rows;
        let found = found.iter().map(|row| row.get("found")).collect::<Result<Vec<String>>>()?;
        Ok(found.into_iter().filter(|line| line != "ok").collect())
    }

    /// If the disk is full or the database is busy, nothing was committed. After any other error the commit may have
    /// reached the disk.
    pub(super) fn commit(&mut self) -> Result<()> {
        use rusqlite::ErrorCode as E;
        self.stats.statement();
        let committed = self.raw.prepare_cached("commit").and_then(|mut commit| commit.execute([]));
        match committed {
            Ok(_) => Ok(()),
            Err(e) if matches!(e.sqlite_error_code(), Some(E::DiskFull | E::DatabaseBusy)) => {
                Err(sqlite_error(e))
            }
            Err(e) => Err(Error::new(Code::OutcomeUnknown, sqlite_error(e).message())
                .hint("ask again with the same request id: it is done at most once")),
        }
    }

    pub(super) fn stored_clock(
        &mut self,
        opened_file: &OpenedFile,
        boot: Option<&str>,
    ) -> Result<StoredClock> {
        let stored = "select schema_version, restored, boot, ahead_ms, seen_at, clock_resets from fleet";
        let answer = self.run(&Stmt::read(stored, vec![]))?;
        let row = &answer.rows[0];
        opened_file.check_fleet(row)?;
        let same_boot = boot.is_some() && row.get::<Option<String>>("boot")?.as_deref() == boot;
        let ahead = row.get::<Option<i64>>("ahead_ms")?.filter(|_| same_boot);
        let time: Option<Time> = row.get("seen_at")?;
        let resets = row.get("clock_resets")?;
        if same_boot {
            return Ok(StoredClock { ahead, least: time, time, resets });
        }
        // After a boot the clock may be wrong, but the time is not before the last renewal of any run.
        let renewed = "select max(expires_at - ttl_ms) as renewed_at from run where ended_at is null";
        let renewed: Option<Time> = self.run(&Stmt::read(renewed, vec![]))?.rows[0].get("renewed_at")?;
        Ok(StoredClock { ahead, least: time.max(renewed), time, resets })
    }

    /// The time of a read, how far that is ahead of this machine's clock, and the next deadline.
    pub(super) fn snapshot(
        &mut self,
        opened_file: &OpenedFile,
        options: &Options,
    ) -> Result<(Time, Millis, Due)> {
        let clock = &options.clock;
        let stored = self.stored_clock(opened_file, clock.boot().as_deref())?;
        let wall = clock.wall(false).unwrap_or(Time(0));
        let now = Ratchet { ahead: stored.ahead }.now(wall, clock.ticks());
        let now = stored.least.map_or(now, |least| now.max(least));
        Ok((now, now.since(wall), self.read_due()?))
    }

    pub(super) fn read_due(&mut self) -> Result<Due> {
        Due::read(&self.run(&Stmt::read(self.due, vec![]))?)
    }
}

fn value(value: rusqlite::types::ValueRef<'_>) -> Result<Value> {
    use rusqlite::types::ValueRef as V;
    match value {
        V::Null => Ok(Value::Null),
        V::Integer(i) => Ok(Value::Int(i)),
        V::Text(text) => String::from_utf8(text.to_vec()).map(Value::Text).map_err(Error::internal),
        V::Real(_) | V::Blob(_) => Err(Error::internal("a column holds neither a number nor text")),
    }
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        use rusqlite::types::ValueRef as V;
        Ok(rusqlite::types::ToSqlOutput::Borrowed(match self {
            Value::Null => V::Null,
            Value::Int(i) => V::Integer(*i),
            Value::Text(text) => V::Text(text.as_bytes()),
        }))
    }
}

/// SQLite's error, with a hint on what to do.
pub(crate) fn sqlite_error(e: rusqlite::Error) -> Error {
    use rusqlite::ErrorCode as E;
    match e.sqlite_error_code() {
        Some(E::DiskFull) => Error::unavailable("the disk, or the limit set for the database, is full")
            .hint("nothing was changed; make room and try again"),
        Some(E::DatabaseBusy | E::DatabaseLocked) => {
            Error::unavailable("another program is holding the database")
                .hint("close the program that has it open (an sqlite3 shell?) and try again")
        }
        Some(E::ReadOnly | E::PermissionDenied) => Error::unavailable("the database cannot be written")
            .hint("check the permissions of the file and of its directory"),
        Some(E::NotADatabase) => Error::new(Code::Invalid, "the file is not a SQLite database")
            .hint("name another file, or move this one away"),
        Some(E::CannotOpen) => Error::unavailable("the database file cannot be opened")
            .hint("check that its directory exists and can be written"),
        Some(E::OperationInterrupted) => {
            Error::unavailable("the read took longer than the time allowed for it")
                .hint("ask for less at once")
        }
        Some(E::SystemIoFailure) => {
            Error::unavailable(format!("the disk failed: {e}")).hint("check the disk, then try again")
        }
        Some(E::DatabaseCorrupt) => {
            Error::internal(format!("the database file is damaged: {e}")).hint("restore a backup")
        }
        _ => Error::internal(format!("the database failed: {e}")),
    }
}
