//! The SQLite database of another system, opened read-only. Neither the file nor its directory changes.

use fencepost::{Code, Error, Result};
use rusqlite::{Connection, OpenFlags, config::DbConfig, types::ValueRef};
use serde_json::{Map, Value};
use std::{io::Read, path::Path};

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

impl Expected {
    pub fn mismatch(&self, path: &Path, why: &str) -> Error {
        Error::new(Code::Invalid, format!("`{}` is not {}: {why}", path.display(), self.name))
            .hint(self.otherwise)
    }
}

/// The names of the tables, without those of SQLite itself.
pub fn tables(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let sql = "select name from sqlite_master where type = 'table' and name not like 'sqlite\\_%' escape '\\' order by name";
    connection.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
}

pub fn count(connection: &Connection, table: &str) -> rusqlite::Result<i64> {
    let sql = format!("select count(*) from \"{}\"", table.replace('"', "\"\""));
    connection.query_row(&sql, [], |row| row.get(0))
}

/// In WAL mode a reader creates files beside the database if they are missing. Without a log the database file is complete,
/// and is opened as immutable. With a log and its index another process is using the database, and we read along.
pub fn open(path: &Path, expected: &Expected) -> Result<Connection> {
    let shown = path.display();
    let mut head = [0; 20];
    let unreadable = |e: std::io::Error| {
        Error::new(Code::Invalid, format!("`{shown}` cannot be read: {e}")).hint(expected.wanted)
    };
    // The log is beside the file itself, not beside a link to it.
    let itself = std::fs::canonicalize(path).map_err(unreadable)?;
    let mut file = std::fs::File::open(&itself).map_err(unreadable)?;
    let read = file.read(&mut head).map_err(unreadable)?;
    if read < head.len() || !head.starts_with(b"SQLite format 3\0") {
        return Err(expected.mismatch(path, "it is not a SQLite database"));
    }
    let beside = |ending: &str| {
        let mut name = itself.clone().into_os_string();
        name.push(ending);
        std::fs::metadata(name).is_ok_and(|file| file.len() > 0)
    };
    let is_wal = head[18] == 2 || head[19] == 2;
    if is_wal && beside("-wal") && !beside("-shm") {
        return Err(Error::unavailable(format!("`{shown}` was not closed by its last user"))
            .hint(format!("let SQLite recover it first: sqlite3 '{shown}' .tables")));
    }
    let how = if is_wal && !beside("-wal") { "immutable=1" } else { "mode=ro" };
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
    let failed = |e: rusqlite::Error| expected.mismatch(path, &e.to_string());
    let connection = Connection::open_with_flags(format!("{uri}?{how}"), flags).map_err(failed)?;
    // The file may come from a stranger. Its views and triggers must not reach functions that do harm.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false).map_err(failed)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true).map_err(failed)?;
    // All reads see one snapshot, even if another process writes meanwhile.
    connection.execute_batch("begin").map_err(failed)?;
    Ok(connection)
}

/// The rows of a query. `name` turns the name of a column into its key.
pub fn rows(connection: &Connection, sql: &str, name: fn(&str) -> String) -> rusqlite::Result<Vec<Row>> {
    let mut statement = connection.prepare(sql)?;
    let names: Vec<String> = statement.column_names().map(name).collect();
    let rows = statement.query_map([], |row| {
        let mut columns = Map::new();
        for (at, name) in names.iter().enumerate() {
            let value = match row.get_ref(at)? {
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let opened = open(&path, &Expected { name: "a list", otherwise: "", wanted: "" }).unwrap();
        assert_eq!(tables(&opened).unwrap(), ["t"]);
        let refused = opened.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap_err();
        assert!(refused.to_string().contains("unsafe use of virtual table"), "{refused}");
        assert!(opened.db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE).unwrap());
    }
}
