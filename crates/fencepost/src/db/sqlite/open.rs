//! Opening a file: is it a fleet, is its version known, and from which floor may fences go on.

use super::{
    BUSY,
    files::{beside, make_database},
    sqlite_error,
    write_queue::WriteQueue,
};
use crate::{
    clock::Time,
    db::{
        migrate::{self, MIGRATIONS},
        options::{Durability, Options},
    },
    error::{Code, Error, Result},
    ids::floor_after_restore,
};
use rusqlite::{Connection, OpenFlags, config::DbConfig};
use std::path::Path;

/// `FENC`: tells a fleet from any other SQLite database.
const APPLICATION_ID: i32 = 0x4645_4E43;

pub(super) fn open(path: &Path, options: &Options) -> Result<Connection> {
    let at = |e: Error| {
        let hint = e.hint_text().map(str::to_owned);
        let version = e.field("schema_version").cloned();
        let error = Error::new(e.code(), format!("`{}`: {}", path.display(), e.message()));
        let error = version.map_or(error.clone(), |version| error.with("schema_version", version));
        hint.map_or(error.clone(), |hint| error.hint(hint))
    };
    if path.is_dir() {
        return Err(Error::new(
            Code::Invalid,
            format!("`{}` is a directory, not a database file", path.display()),
        ));
    }
    let missing = || Error::new(Code::NotFound, "there is no fleet").hint("fence init makes it");
    if !options.create && !path.exists() {
        return Err(at(missing()));
    }
    if options.create {
        // If that fails, SQLite reports the reason below.
        let _ = make_database(path, None);
    }
    let create = if options.create { OpenFlags::SQLITE_OPEN_CREATE } else { OpenFlags::empty() };
    let conn = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE | create).map_err(at)?;
    let is_empty = check_ours(&conn).map_err(at)?;
    if is_empty && !options.create {
        return Err(at(missing()));
    }
    pragma(&conn, "synchronous", options.durability.pragma()).map_err(at)?;
    // A larger log needs fewer checkpoints: 16 MiB, against SQLite's 4.
    pragma(&conn, "wal_autocheckpoint", "4000").map_err(at)?;
    // A busy queue returns to the same pages. With SQLite's 2 MiB they would be read from the file again and again.
    pragma(&conn, "cache_size", "-32768").map_err(at)?;
    // SQLite writes the pages for undoing a savepoint to a file once one op has changed more than 64 KiB, and then for
    // all later ops as well: two writes for each changed page (seen by strace; the saving is not measured). In memory
    // they need no more than one op's pages.
    pragma(&conn, "temp_store", "memory").map_err(at)?;
    pragma(&conn, "journal_size_limit", &options.wal_limit.to_string()).map_err(at)?;
    if let Some(pages) = options.max_pages {
        pragma(&conn, "max_page_count", &pages.to_string()).map_err(at)?;
    }
    if !options.migrate {
        version(&conn).and_then(migrate::refuse_older).map_err(at)?;
    }
    migrate(&conn, path, options.schema_version.unwrap_or(migrate::latest())).map_err(at)?;
    keep_fences_rising(&conn, options).map_err(at)?;
    Ok(conn)
}

/// A connection that only reads. It has the writer's durability so that `pragma synchronous` reports that.
pub(super) fn reader(path: &Path, durability: Durability) -> Result<Connection> {
    let conn = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    pragma(&conn, "synchronous", durability.pragma())?;
    pragma(&conn, "query_only", "on")?;
    Ok(conn)
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection> {
    let conn =
        Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(sqlite_error)?;
    conn.busy_timeout(BUSY).map_err(sqlite_error)?;
    conn.set_prepared_statement_cache_capacity(256);
    // Without QPSG SQLite checks the bound values against partial indexes, and prepares a join anew each time they
    // change: 32 us to load a task instead of 4.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(sqlite_error)?;
    // The file may be untrusted: its triggers and views can call no harmful function, and no statement can change the
    // file's own structure.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false).map_err(sqlite_error)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true).map_err(sqlite_error)?;
    Ok(conn)
}

fn pragma(conn: &Connection, name: &str, value: &str) -> Result<()> {
    conn.execute_batch(&format!("pragma {name}={value}")).map_err(sqlite_error)
}

fn pragma_int(conn: &Connection, name: &str) -> Result<i64> {
    conn.query_row(&format!("pragma {name}"), [], |row| row.get(0)).map_err(sqlite_error)
}

/// Refuses another program's database, so that it is never migrated. Returns whether the database is empty. The tables
/// are counted before the application id is read: a process that creates the fleet at this moment commits both at once,
/// and its file must not be refused.
fn check_ours(conn: &Connection) -> Result<bool> {
    let tables: i64 =
        conn.query_row("select count(*) from sqlite_master", [], |row| row.get(0)).map_err(sqlite_error)?;
    if tables > 0 && pragma_int(conn, "application_id")? != i64::from(APPLICATION_ID) {
        return Err(Error::new(Code::Invalid, "a SQLite database of another program, not a fleet")
            .hint("name another file; fence will create it"));
    }
    Ok(tables == 0)
}

fn version(conn: &Connection) -> Result<i64> {
    let version = pragma_int(conn, "user_version")?;
    migrate::refuse_newer(version)?;
    Ok(version)
}

/// Runs the missing migrations, one transaction each. Processes that open the file at the same time take turns, and
/// check the version again when they have their turn.
fn migrate(conn: &Connection, path: &Path, target: i64) -> Result<()> {
    let mode: String = conn.query_row("pragma journal_mode", [], |row| row.get(0)).map_err(sqlite_error)?;
    if version(conn)? >= target && mode == "wal" {
        return Ok(());
    }
    let mut write_queue = WriteQueue::open(path)?;
    let _turn = write_queue.take_turn()?;
    pragma(conn, "journal_mode", "wal")?;
    let from = version(conn)?;
    // `fence.db` of version 1 is kept as `fence.db.v1.bak`.
    if from > 0 && from < target {
        backup(conn, path, &beside(path, &format!(".v{from}.bak")))?;
    }
    for migration in MIGRATIONS.iter().filter(|m| m.version > from && m.version <= target) {
        let script = format!(
            "begin immediate; {} {} pragma user_version={}; pragma application_id={APPLICATION_ID}; commit;",
            migration.sql,
            migration.store_version(),
            migration.version
        );
        conn.execute_batch(&script).map_err(|e| {
            let _ = conn.execute_batch("rollback");
            sqlite_error(e)
        })?;
    }
    Ok(())
}

/// Makes a consistent copy, marked as restored: a process that opens it in the place of the original then never
/// issues a fence that the original issued after the copy was made. The copy gets its name when it is complete and
/// marked. It has the mode of the original.
fn backup(conn: &Connection, from: &Path, to: &Path) -> Result<()> {
    let unfinished = beside(to, ".part");
    let unwritable = |e| Error::unavailable(format!("cannot write `{}`: {e}", to.display()));
    let _ = std::fs::remove_file(&unfinished);
    make_database(&unfinished, Some(from)).map_err(unwritable)?;
    let mut copy = connect(&unfinished, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    {
        let backup = rusqlite::backup::Backup::new(conn, &mut copy).map_err(sqlite_error)?;
        backup.run_to_completion(1000, std::time::Duration::ZERO, None).map_err(sqlite_error)?;
    }
    // Without a write-ahead log the copy is one file, which can be renamed.
    copy.execute_batch("pragma journal_mode=delete; update fleet set restored = 1").map_err(sqlite_error)?;
    copy.close().map_err(|(_, e)| sqlite_error(e))?;
    std::fs::rename(&unfinished, to).map_err(unwritable)
}

/// Makes a backup of a fleet while other processes may use it.
pub(crate) fn copy_backup(path: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        return Err(Error::new(Code::Invalid, format!("`{}` exists already", to.display()))
            .hint("a backup never overwrites a file: name another"));
    }
    backup(&reader(path, Durability::Full)?, path, to)
}

/// Raises the floor so that no fence is issued twice: not after a restored backup, and not after a power cut while
/// commits were not yet on the disk.
fn keep_fences_rising(conn: &Connection, options: &Options) -> Result<()> {
    // If the system does not name its boots, every opening may be the first after a power cut.
    let named = options.clock.boot();
    let boot = named.clone().or_else(|| Some("unnamed".into()));
    let (floor, restored, normal_boot): (i64, bool, Option<String>) = conn
        .query_row("select floor, restored, normal_boot from fleet", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .map_err(sqlite_error)?;
    let unclean = normal_boot.is_some() && (normal_boot != boot || named.is_none());
    let marks = options.durability == Durability::Normal;
    if !restored && !unclean && (!marks || normal_boot.is_some()) {
        return Ok(());
    }
    let now = options.clock.wall(false).unwrap_or(Time(0));
    let floor = if restored || unclean { floor_after_restore(floor, now) } else { floor };
    conn.execute_batch("pragma synchronous=full").map_err(sqlite_error)?;
    if restored || unclean {
        // Followers may have seen positions that this copy has not issued yet.
        conn.execute("update sqlite_sequence set seq = ?1 where name = 'event' and seq < ?1", [floor])
            .map_err(sqlite_error)?;
    }
    conn.execute(
        "update fleet set floor = max(floor, ?1), restored = 0, normal_boot = ?2",
        rusqlite::params![floor, boot.filter(|_| marks)],
    )
    .map_err(sqlite_error)?;
    pragma(conn, "synchronous", options.durability.pragma())
}
