//! Migrations from every earlier version: the same schema as a new fleet, and the same rows.

use fencepost::{Code, Fleet, Options, lock, task};
use fencepost_testing::{
    PATIENCE, World, eventually,
    postgres::{connect, fresh_schema, url as postgres_url},
    world::{patient, refused},
};
use futures_util::future::join_all;
use rusqlite::Connection;
use std::path::{Path, PathBuf};

fn at_version(version: i64) -> Options {
    let mut options = patient();
    options.schema_version = Some(version);
    options
}

fn database(dir: &tempfile::TempDir, name: &str) -> (PathBuf, String) {
    let path = dir.path().join(name);
    (path.clone(), path.display().to_string())
}

/// A connection without the engine. A fleet that was just dropped may still be closing the file.
fn file(path: &Path) -> Connection {
    let conn = Connection::open(path).unwrap();
    conn.busy_timeout(PATIENCE).unwrap();
    conn
}

/// Every table and index, as SQLite stores them.
fn sqlite_schema(path: &Path) -> Vec<String> {
    let conn = file(path);
    let mut rows = conn
        .prepare("select type || ' ' || name || ' ' || coalesce(sql, '') from sqlite_master order by 1")
        .unwrap();
    rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

fn sqlite_version(path: &Path) -> i64 {
    file(path).query_row("pragma user_version", [], |row| row.get(0)).unwrap()
}

/// Waits until all others have closed the file: only then can WAL mode be switched off.
async fn closed(path: &Path) {
    let conn = file(path);
    conn.busy_timeout(std::time::Duration::ZERO).unwrap();
    eventually("the fleet was dropped, and its file is closed", async || {
        let mode = conn.query_row("pragma journal_mode=delete", [], |row| row.get::<_, String>(0));
        mode.is_ok_and(|mode| mode == "delete")
    })
    .await;
}

/// Rows of the first version: a run, a lock that it held, an event.
const OLD_ROWS: &str = "
    insert into run(name, ttl_ms, opened_at, expires_at, ended_at, settled) values ('old', 1000, 1, 1001, 500, 1);
    insert into lock(name, fence, updated_at) values ('deploy', 41, 500);
    insert into event(at, kind, resource, run, fence) values (1, 'lock.claimed', 'lock/deploy', 'old', 41);";

/// The rows are still there, and the numbers continue.
async fn assert_kept(fleet: &Fleet) {
    let claimed = fleet.call(lock::Claim::new("deploy", "new")).await.unwrap().claim;
    assert_eq!(claimed.token, "lock/deploy@42");
    // On PostgreSQL events newer than the oldest transaction of any test are held back.
    let mut events = Vec::new();
    eventually("the log is readable", async || {
        events = fleet.call(fencepost::event::List::default()).await.unwrap().events;
        !events.is_empty()
    })
    .await;
    assert_eq!((events[0].kind.as_str(), events[0].fence), ("lock.claimed", Some(41)));
    assert_eq!(fleet.call(task::Add::new("auth", "first")).await.unwrap().task.id, "auth-1");
    assert!(fleet.call(fencepost::admin::Check {}).await.unwrap().ok);
}

#[tokio::test]
async fn every_earlier_sqlite_version_becomes_the_fresh_schema_and_keeps_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (fresh, url) = database(&dir, "fresh.db");
    drop(Fleet::open(&url).await.unwrap());
    for version in 1..sqlite_version(&fresh) {
        let (path, url) = database(&dir, &format!("from-{version}.db"));
        drop(Fleet::open_with(&url, at_version(version)).await.unwrap());
        assert_eq!(sqlite_version(&path), version);
        assert_ne!(sqlite_schema(&path), sqlite_schema(&fresh));
        file(&path).execute_batch(OLD_ROWS).unwrap();
        let fleet = Fleet::open(&url).await.unwrap();
        assert_eq!(sqlite_version(&path), sqlite_version(&fresh));
        assert_eq!(sqlite_schema(&path), sqlite_schema(&fresh));
        assert_kept(&fleet).await;
    }
}

/// Agents of a fleet that was used before there were wake-ups are not woken until somebody switches them on. Old posts wake nobody.
#[tokio::test]
async fn wake_ups_are_off_after_an_upgrade() {
    let dir = tempfile::tempdir().unwrap();
    for (name, rows, enabled) in [("new.db", "", 1), ("used.db", OLD_ROWS, 0)] {
        let (path, url) = database(&dir, name);
        drop(Fleet::open_with(&url, at_version(19)).await.unwrap());
        file(&path).execute_batch(rows).unwrap();
        let post = "insert into channel(name, next_n, created_at) values ('c', 3, 1)";
        file(&path).execute_batch(post).unwrap();
        let fleet = Fleet::open(&url).await.unwrap();
        let shown = fleet.call(fencepost::storm::Show::default()).await.unwrap();
        assert_eq!(
            (shown.settings[0].name, shown.settings[0].value),
            (fencepost::storm::Setting::Enabled, enabled)
        );
        assert!(!fleet.call(fencepost::storm::Due {}).await.unwrap().due);
    }
}

/// A fleet that ever had a key requires one, even if the key was revoked before the version that remembers that.
#[tokio::test]
async fn a_migrated_fleet_remembers_its_keys() {
    let dir = tempfile::tempdir().unwrap();
    for (name, keys, keyed) in [
        ("none.db", "", false),
        (
            "one.db",
            "insert into access_key(name, digest, role, created_at) values ('k', 'd', 'admin', 1)",
            true,
        ),
        (
            "revoked.db",
            "insert into access_key(name, digest, role, created_at, revoked_at) values ('k', 'd', 'reader', 1, 2)",
            true,
        ),
    ] {
        let (path, url) = database(&dir, name);
        drop(Fleet::open_with(&url, at_version(13)).await.unwrap());
        file(&path).execute_batch(keys).unwrap();
        assert_eq!(Fleet::open(&url).await.unwrap().requires_key().await.unwrap(), keyed, "{name}");

        let schema = fresh_schema();
        drop(Fleet::open_with(&postgres_url(&schema), at_version(13)).await.unwrap());
        connect(&schema).await.batch_execute(keys).await.unwrap();
        let fleet = Fleet::open(&postgres_url(&schema)).await.unwrap();
        assert_eq!(fleet.requires_key().await.unwrap(), keyed, "{name}");
    }
}

#[tokio::test]
async fn sixteen_processes_migrate_one_fleet_at_once() {
    for _ in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        let (path, url) = database(&dir, "fence.db");
        drop(Fleet::open_with(&url, at_version(1)).await.unwrap());
        file(&path).execute_batch(OLD_ROWS).unwrap();
        let fleets = join_all((0..16).map(|_| Fleet::open_with(&url, patient()))).await;
        let fleets: Vec<_> = fleets.into_iter().map(Result::unwrap).collect();
        assert_kept(&fleets[7]).await;
    }
}

#[tokio::test]
async fn the_backup_can_be_put_back_and_no_fence_is_given_out_twice() {
    let dir = tempfile::tempdir().unwrap();
    let (path, url) = database(&dir, "fence.db");
    let (backup, _) = database(&dir, "fence.db.v1.bak");
    drop(Fleet::open_with(&url, at_version(1)).await.unwrap());
    assert!(!backup.exists(), "a new fleet has nothing to back up");
    file(&path).execute_batch(OLD_ROWS).unwrap();
    drop(Fleet::open_with(&url, at_version(1)).await.unwrap());
    assert!(!backup.exists(), "nothing was migrated");
    let old_schema = sqlite_schema(&path);

    closed(&path).await;
    let fleet = Fleet::open(&url).await.unwrap();
    assert_eq!(sqlite_version(&backup), 1);
    assert_eq!(sqlite_schema(&backup), old_schema);
    let given_out = fleet.call(lock::Claim::new("deploy", "r1")).await.unwrap().claim.fence;
    assert_eq!(given_out, 42);
    let made = std::fs::read(&backup).unwrap();
    drop(Fleet::open(&url).await.unwrap());
    assert!(std::fs::read(&backup).unwrap() == made, "opened twice, migrated once");

    // The way back: all processes stop, and the backup replaces the database.
    drop(fleet);
    closed(&path).await;
    std::fs::copy(&backup, &path).unwrap();
    drop(Fleet::open_with(&url, at_version(1)).await.unwrap());
    assert_eq!(sqlite_schema(&path), old_schema);
    let fleet = Fleet::open(&url).await.unwrap();
    let again = fleet.call(lock::Claim::new("deploy", "r2")).await.unwrap().claim.fence;
    assert!(again > given_out + 1_000_000, "{again}");
    drop(fleet);
    let fleet = Fleet::open(&url).await.unwrap();
    assert_eq!(fleet.call(lock::Claim::new("other", "r2")).await.unwrap().claim.fence, again);
}

#[tokio::test]
async fn a_migration_that_fails_leaves_the_old_version_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (path, url) = database(&dir, "fence.db");
    drop(Fleet::open_with(&url, at_version(1)).await.unwrap());
    file(&path).execute_batch(OLD_ROWS).unwrap();
    let old_schema = sqlite_schema(&path);
    let pages: u32 = file(&path).query_row("pragma page_count", [], |row| row.get(0)).unwrap();
    let mut no_room = Options::default();
    no_room.max_pages = Some(pages + 5);
    let error = refused(Fleet::open_with(&url, no_room).await);
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert_eq!((sqlite_version(&path), sqlite_schema(&path)), (1, old_schema));
    assert_kept(&Fleet::open(&url).await.unwrap()).await;
}

#[tokio::test]
async fn a_newer_sqlite_fleet_is_refused() {
    let world = World::sqlite().await;
    file(Path::new(&world.url)).execute_batch("pragma user_version = 99").unwrap();
    let error = refused(Fleet::open(&world.url).await);
    assert_eq!(error.code(), Code::Unavailable);
    let message = error.message().replace(&world.url, "DIR/fence.db");
    insta::assert_snapshot!(message, @"`DIR/fence.db`: the fleet has schema version 99, and this fence knows versions up to 21");
    insta::assert_snapshot!(error.hint_text().unwrap(), @"use the newer fence that made it, or restore the backup it left beside the database");
}

/// Every column, constraint, index and function of a schema, without the schema's name.
async fn postgres_schema(schema: &str) -> Vec<String> {
    let rows = connect(schema)
        .await
        .query(
            "select concat_ws(' ', 'column', table_name, column_name, ordinal_position, data_type, collation_name,
               is_nullable, column_default, is_identity, is_generated, generation_expression)
             from information_schema.columns where table_schema = $1::text
             union all
             select concat_ws(' ', 'index', tablename, indexdef) from pg_indexes where schemaname = $1::text
             union all
             select concat_ws(' ', 'constraint', conrelid::regclass, conname, pg_get_constraintdef(oid))
             from pg_constraint where connamespace = $1::text::regnamespace
             union all
             select concat_ws(' ', 'function', pg_get_functiondef(oid)) from pg_proc
             where pronamespace = $1::text::regnamespace
             order by 1",
            &[&schema],
        )
        .await
        .unwrap();
    rows.iter().map(|row| row.get::<_, String>(0).replace(schema, "SCHEMA")).collect()
}

async fn postgres_version(schema: &str) -> i64 {
    let row = connect(schema).await.query_one("select max(version) from migration", &[]).await.unwrap();
    row.get(0)
}

#[tokio::test]
async fn every_earlier_postgres_version_becomes_the_fresh_schema_and_keeps_its_rows() {
    let fresh = fresh_schema();
    drop(Fleet::open(&postgres_url(&fresh)).await.unwrap());
    for version in 1..postgres_version(&fresh).await {
        let schema = fresh_schema();
        drop(Fleet::open_with(&postgres_url(&schema), at_version(version)).await.unwrap());
        assert_eq!(postgres_version(&schema).await, version);
        assert_ne!(postgres_schema(&schema).await, postgres_schema(&fresh).await);
        connect(&schema).await.batch_execute(OLD_ROWS).await.unwrap();
        let fleet = Fleet::open(&postgres_url(&schema)).await.unwrap();
        assert_eq!(postgres_version(&schema).await, postgres_version(&fresh).await);
        assert_eq!(postgres_schema(&schema).await, postgres_schema(&fresh).await);
        assert_kept(&fleet).await;
    }
}

#[tokio::test]
async fn many_processes_create_or_migrate_one_postgres_fleet_at_once() {
    for from in [None, Some(1)] {
        let schema = fresh_schema();
        let url = postgres_url(&schema);
        if let Some(version) = from {
            drop(Fleet::open_with(&url, at_version(version)).await.unwrap());
        }
        let fleets = join_all((0..8).map(|_| Fleet::open_with(&url, patient()))).await;
        let fleets: Vec<_> = fleets.into_iter().map(Result::unwrap).collect();
        assert_eq!(fleets[5].call(task::Add::new("auth", "first")).await.unwrap().task.id, "auth-1");
        let applied =
            connect(&schema).await.query("select version from migration order by 1", &[]).await.unwrap();
        assert_eq!(applied.iter().map(|row| row.get(0)).collect::<Vec<i64>>(), (1..=21).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_newer_postgres_fleet_is_refused() {
    let schema = fresh_schema();
    drop(Fleet::open(&postgres_url(&schema)).await.unwrap());
    connect(&schema).await.batch_execute("insert into migration(version) values (99)").await.unwrap();
    let error = refused(Fleet::open(&postgres_url(&schema)).await);
    assert_eq!(error.code(), Code::Unavailable);
    insta::assert_snapshot!(error.message(), @"the fleet has schema version 99, and this fence knows versions up to 21");
}
