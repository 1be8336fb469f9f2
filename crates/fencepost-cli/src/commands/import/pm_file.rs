//! A `.pm/tasks.db`, read and never written: not the file, and nothing beside it.

use fencepost::{Code, Error, Result};
use rusqlite::{Connection, OpenFlags, types::ValueRef};
use serde_json::{Map, Value};
use std::{io::Read, path::Path};

/// The columns of one row that are not null.
pub type Row = Map<String, Value>;

#[derive(Debug)]
pub struct PmFile {
    pub tasks: Vec<Row>,
    pub dependencies: Vec<Row>,
    /// Other tables with something in them.
    pub others: Vec<(String, i64)>,
}

/// A column that holds bytes instead of text is marked, so that it can be told of.
pub const BYTES: &str = "\u{0}bytes";

pub fn read(path: &Path) -> Result<PmFile> {
    let shown = path.display();
    let failed = |e: rusqlite::Error| not_pm(path, &e.to_string());
    let connection = open(path)?;
    let tables: Vec<String> = connection
        .prepare("select name from sqlite_master where type = 'table' and name not like 'sqlite\\_%' escape '\\' order by name")
        .and_then(|mut tables| tables.query_map([], |row| row.get(0))?.collect())
        .map_err(failed)?;
    if !tables.iter().any(|name| name == "tasks") {
        return Err(not_pm(path, "it has no table `tasks`"));
    }
    for column in ["sprint", "task_num", "title"] {
        if !connection.column_exists(None, "tasks", column).map_err(failed)? {
            return Err(not_pm(path, &format!("its table `tasks` has no column `{column}`")));
        }
    }
    let tasks = rows(&connection, "select * from tasks order by sprint, task_num").map_err(failed)?;
    let dependencies = match tables.iter().any(|name| name == DEPENDENCIES) {
        true => rows(
            &connection,
            "select sprint, task_num, depends_on_sprint, depends_on_task from task_dependencies
             order by sprint, task_num, depends_on_sprint, depends_on_task",
        )
        .map_err(failed)?,
        false => Vec::new(),
    };
    let mut others = Vec::new();
    for name in tables.into_iter().filter(|name| name != "tasks" && name != DEPENDENCIES) {
        let count = format!("select count(*) from \"{}\"", name.replace('"', "\"\""));
        let count = connection.query_row(&count, [], |row| row.get(0));
        match count.map_err(|e| Error::unavailable(format!("`{shown}` cannot be read: {e}")))? {
            0 => {}
            count => others.push((name, count)),
        }
    }
    Ok(PmFile { tasks, dependencies, others })
}

const DEPENDENCIES: &str = "task_dependencies";

fn not_pm(path: &Path, why: &str) -> Error {
    Error::new(Code::Invalid, format!("`{}` is not a .pm/tasks.db: {why}", path.display()))
        .hint("fence import jsonl takes tasks from anywhere else")
}

/// In WAL mode a reader keeps its own files beside the database, and makes them if they are not there. Without a log
/// the database is whole and can be read as it lies; with a log and its index somebody is using it, and we join them.
fn open(path: &Path) -> Result<Connection> {
    let shown = path.display();
    let mut head = [0; 20];
    let unreadable = |e: std::io::Error| {
        let hint = "fence import pm takes the file of a .pm directory: .pm/tasks.db";
        Error::new(Code::Invalid, format!("`{shown}` cannot be read: {e}")).hint(hint)
    };
    // A log lies beside the file itself, not beside a link to it.
    let itself = std::fs::canonicalize(path).map_err(unreadable)?;
    let mut file = std::fs::File::open(&itself).map_err(unreadable)?;
    let read = file.read(&mut head).map_err(unreadable)?;
    if read < head.len() || !head.starts_with(b"SQLite format 3\0") {
        return Err(not_pm(path, "it is no SQLite database"));
    }
    let beside = |ending: &str| {
        let mut name = itself.clone().into_os_string();
        name.push(ending);
        std::fs::metadata(name).is_ok_and(|file| file.len() > 0)
    };
    let is_wal = head[18] == 2 || head[19] == 2;
    if is_wal && beside("-wal") && !beside("-shm") {
        return Err(Error::unavailable(format!(
            "`{shown}` was left in the middle of something by its last user"
        ))
        .hint(format!("let SQLite put it in order first: sqlite3 '{shown}' .tables")));
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
    let failed = |e: rusqlite::Error| not_pm(path, &e.to_string());
    let connection = Connection::open_with_flags(format!("{uri}?{how}"), flags).map_err(failed)?;
    // One moment of a file that others may be writing to.
    connection.execute_batch("begin").map_err(failed)?;
    Ok(connection)
}

fn rows(connection: &Connection, sql: &str) -> rusqlite::Result<Vec<Row>> {
    let mut statement = connection.prepare(sql)?;
    let names: Vec<String> = statement.column_names().map(str::to_lowercase).collect();
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
