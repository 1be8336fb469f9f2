//! The SQLite database of another system, opened read-only. Neither the file nor its directory changes.

use crate::limits::{LIMITS, Limits, Meter, TooLarge};
use fencepost::{Code, Error, Result, files::open_regular};
use rusqlite::{Connection, ErrorCode, OpenFlags, config::DbConfig, limits::Limit, types::ValueRef};
use serde_json::{Map, Value};
use std::{
    cell::RefCell,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// The columns of one row that are not null.
pub type Row = Map<String, Value>;

/// Stands for a column that holds bytes instead of text, so that the importer can report it.
pub const BYTES: &str = "\u{0}bytes";

/// The kind of database that an importer expects, in words for its errors.
#[derive(Debug)]
pub struct Expected {
    pub name: &'static str,
    /// The hint if the file is something else.
    pub otherwise: &'static str,
    /// The hint if the file cannot be read at all.
    pub wanted: &'static str,
}

/// An open database. A stranger may have made it: see `limits.rs`.
#[derive(Debug)]
pub struct Database {
    connection: Connection,
    path: PathBuf,
    expected: &'static Expected,
    limits: Limits,
    read: RefCell<Meter>,
}

impl Database {
    pub fn open(path: &Path, expected: &'static Expected) -> Result<Self> {
        Self::open_with(path, expected, LIMITS)
    }

    fn open_with(path: &Path, expected: &'static Expected, limits: Limits) -> Result<Self> {
        let connection = open(path, expected, limits)?;
        let read = RefCell::new(Meter::new(limits));
        let database = Self { connection, path: path.to_owned(), expected, limits, read };
        database.check_computed().map_err(|e| database.failed(e))?;
        Ok(database)
    }

    /// A file of 8 KB whose table has 30 columns such as `hex(zeroblob(8000000))` took 1.2 GB for one row.
    fn check_computed(&self) -> rusqlite::Result<()> {
        let sql = "select count(*) from sqlite_master as m, pragma_table_xinfo(m.name) as c
                   where m.type = 'table' and m.rootpage > 0 and c.hidden in (2, 3)
                   group by m.name having count(*) > ?1";
        let most = self.limits.computed;
        match self.connection.prepare(sql)?.exists([i64::try_from(most).unwrap_or(i64::MAX)])? {
            true => Err(too_large(0, TooLarge::Computed(most))),
            false => Ok(()),
        }
    }

    /// The file is not the expected kind of database.
    pub fn mismatch(&self, why: &str) -> Error {
        mismatch(self.expected, &self.path, why)
    }

    fn failed(&self, error: rusqlite::Error) -> Error {
        let too_large = match &error {
            rusqlite::Error::FromSqlConversionFailure(_, _, source) => {
                source.downcast_ref::<TooLarge>().copied()
            }
            error if error.sqlite_error_code() == Some(ErrorCode::TooBig) => {
                Some(TooLarge::Value(self.limits.value))
            }
            _ => None,
        };
        match too_large {
            Some(too_large) => too_large.of(&self.path.display().to_string()),
            None => self.mismatch(&error.to_string()),
        }
    }

    /// The names of the tables, without those of SQLite itself.
    pub fn tables(&self) -> Result<Vec<String>> {
        let sql =
            "select name from sqlite_master where type = 'table' and name not like 'sqlite\\_%' escape '\\'";
        let names = || -> rusqlite::Result<Vec<String>> {
            self.connection.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
        };
        let mut names = names().map_err(|e| self.failed(e))?;
        names.sort();
        Ok(names)
    }

    /// A virtual table has none: its module is not built in, and `column_exists` ends the process there.
    pub fn has_column(&self, table: &str, column: &str) -> Result<bool> {
        let sql = "select 1 from sqlite_master as m, pragma_table_xinfo(m.name) as c
                   where m.type = 'table' and m.rootpage > 0 and m.name = ?1 and c.name = ?2 collate nocase";
        let exists = || self.connection.prepare(sql)?.exists([table, column]);
        exists().map_err(|e| self.failed(e))
    }

    /// How many rows a table has. It stops at the limit: a damaged file can have a table without an end.
    pub fn count(&self, table: &str) -> rusqlite::Result<i64> {
        let (table, most) = (table.replace('"', "\"\""), self.limits.rows);
        let sql = format!("select count(*) from (select 1 from \"{table}\" limit {most})");
        self.connection.query_row(&sql, [], |row| row.get(0))
    }

    /// The rows of a query, in the order in which SQLite finds them: sorting them here would not be limited. `name` turns the
    /// name of a column into its key.
    pub fn rows(&self, sql: &str, name: fn(&str) -> String) -> Result<Vec<Row>> {
        self.read(sql, name).map_err(|e| self.failed(e))
    }

    fn read(&self, sql: &str, name: fn(&str) -> String) -> rusqlite::Result<Vec<Row>> {
        let mut statement = self.connection.prepare(sql)?;
        let names: Vec<String> = statement.column_names().map(name).collect();
        let mut read = self.read.borrow_mut();
        let rows = statement.query_map([], |row| {
            read.row().map_err(|e| too_large(0, e))?;
            let mut columns = Map::new();
            for (at, name) in names.iter().enumerate() {
                let value = row.get_ref(at)?;
                let bytes = match value {
                    ValueRef::Null => continue,
                    ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.len(),
                    ValueRef::Integer(_) | ValueRef::Real(_) => 0,
                };
                read.value(name.len() + bytes).map_err(|e| too_large(at, e))?;
                let value = match value {
                    ValueRef::Null => continue,
                    ValueRef::Integer(number) => number.into(),
                    ValueRef::Real(number) => number.into(),
                    ValueRef::Text(text) => String::from_utf8_lossy(text).replace('\0', "\u{FFFD}").into(),
                    ValueRef::Blob(_) => BYTES.into(),
                };
                columns.insert(name.clone(), value);
            }
            Ok(columns)
        })?;
        rows.collect()
    }
}

/// The error of a closure that reads a row. [`Database::failed`] finds the limit in it.
fn too_large(column: usize, limit: TooLarge) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Null, Box::new(limit))
}

fn mismatch(expected: &Expected, path: &Path, why: &str) -> Error {
    Error::new(Code::Invalid, format!("`{}` is not {}: {why}", path.display(), expected.name))
        .hint(expected.otherwise)
}

/// In WAL mode a reader creates files beside the database if they are missing. Without a log the database file is complete,
/// and is opened as immutable. With a log and its index another process is using the database, and we read along.
fn open(path: &Path, expected: &Expected, limits: Limits) -> Result<Connection> {
    let shown = path.display();
    let mut head = [0; 20];
    let unreadable = |e: io::Error| {
        Error::new(Code::Invalid, format!("`{shown}` cannot be read: {e}")).hint(expected.wanted)
    };
    // The log is beside the file itself, not beside a link to it.
    let itself = std::fs::canonicalize(path).map_err(unreadable)?;
    let mut file = open_regular(&itself).map_err(unreadable)?;
    let read = file.read(&mut head).map_err(unreadable)?;
    if read < head.len() || !head.starts_with(b"SQLite format 3\0") {
        return Err(mismatch(expected, path, "it is not a SQLite database"));
    }
    // SQLite opens these as well, and would wait for the writer of a pipe.
    let beside = |ending: &str| {
        let mut name = itself.clone().into_os_string();
        name.push(ending);
        match std::fs::metadata(&name) {
            Ok(about) if !about.is_file() => {
                Err(unreadable(io::Error::other(format!("`{shown}{ending}` is not a regular file"))))
            }
            about => Ok(about.is_ok_and(|file| file.len() > 0)),
        }
    };
    let (log, index, _) = (beside("-wal")?, beside("-shm")?, beside("-journal")?);
    let is_wal = head[18] == 2 || head[19] == 2;
    if is_wal && log && !index {
        return Err(Error::unavailable(format!("`{shown}` was not closed by its last user"))
            .hint(format!("let SQLite recover it first: sqlite3 '{shown}' .tables")));
    }
    let how = if is_wal && !log { "immutable=1" } else { "mode=ro" };
    let mut uri = String::from("file:");
    for byte in itself.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            _ if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |e: rusqlite::Error| mismatch(expected, path, &e.to_string());
    let connection = Connection::open_with_flags(format!("{uri}?{how}"), flags).map_err(failed)?;
    // The file may come from a stranger. Its views and triggers must not reach functions that do harm, and a column that is
    // computed must not fill the memory: zeroblob(1000000000).
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false).map_err(failed)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true).map_err(failed)?;
    let most = i32::try_from(limits.value).unwrap_or(i32::MAX);
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, most).map_err(failed)?;
    // All reads see one snapshot, even if another process writes meanwhile.
    connection.execute_batch("begin").map_err(failed)?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: Expected = Expected { name: "a list", otherwise: "", wanted: "" };

    #[test]
    fn a_strangers_schema_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("list.db");
        let planted = "create table t(x); create view v as select name from pragma_database_list";
        let sql = "select count(*) from v";
        let stranger = Connection::open(&path).unwrap();
        stranger.execute_batch(planted).unwrap();
        assert_eq!(
            stranger.query_row(sql, [], |row| row.get(0)),
            Ok(1),
            "a connection that trusts the schema reads it"
        );
        let opened = Database::open(&path, &LIST).unwrap();
        assert_eq!(opened.tables().unwrap(), ["t"]);
        let refused = opened.connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap_err();
        assert!(refused.to_string().contains("unsafe use of virtual table"), "{refused}");
        assert!(opened.connection.db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE).unwrap());
        let most = opened.connection.limit(Limit::SQLITE_LIMIT_LENGTH).unwrap();
        assert_eq!(usize::try_from(most).unwrap(), LIMITS.value, "SQLite computes no longer value");
    }

    #[test]
    fn what_is_read_is_limited() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("list.db");
        let rows = "create table t(x); insert into t values ('one'), ('two'), ('three');
            create table long(x as (printf('%.*c', 2000, 'x')), y); insert into long(y) values (1), (2);
            create table bomb(x as (zeroblob(1000000000)), y); insert into bomb(y) values (1);
            create table two(x as (y + 1), z as (y + 2), y); insert into two(y) values (1);";
        Connection::open(&path).unwrap().execute_batch(rows).unwrap();
        let most = Limits { rows: 3, value: 2100, total: 4000, computed: 2 };
        let of = |table: &str, limits: Limits| {
            let database = Database::open_with(&path, &LIST, limits).unwrap();
            let read = database.rows(&format!("select * from {table}"), str::to_owned).map(|rows| rows.len());
            read.map_err(|e| (e.code(), e.message().to_owned()))
        };
        assert_eq!((of("t", most), of("two", most)), (Ok(3), Ok(1)));
        let error = Database::open_with(&path, &LIST, Limits { computed: 1, ..most }).unwrap_err();
        assert!(error.message().ends_with("a table has more than 1 computed columns"), "{error:?}");
        for (table, limits, says) in [
            ("t", Limits { rows: 2, ..most }, "it has more than 2 rows"),
            ("t", Limits { total: 200, ..most }, "it has more than 200 bytes"),
            ("long", most, "it has more than 4000 bytes"),
            ("long", Limits { value: 1999, ..most }, "it has a value or a row with more than 1999 bytes"),
            ("bomb", LIMITS, "it has a value or a row with more than 16777216 bytes"),
        ] {
            let (code, message) = of(table, limits).expect_err(says);
            assert!(code == Code::TooLarge && message.ends_with(says), "{message}");
        }
        let database = Database::open_with(&path, &LIST, Limits { rows: 2, ..most }).unwrap();
        assert_eq!((database.count("t").unwrap(), database.count("bomb").unwrap()), (2, 1));
    }
}
