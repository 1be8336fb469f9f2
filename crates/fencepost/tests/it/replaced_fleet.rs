//! The database changes under a running process: its file is replaced, or a newer version migrates it.

use crate::open_transactions::start;
use fencepost::{Code, Fleet, Result, event, lock, params, task};
use fencepost_testing::{PATIENCE, World, eventually, world::refused};
use std::{fs, time::Duration};
use tokio::task::JoinHandle;

/// A call that waits for a held lock.
async fn waiter(world: &World) -> JoinHandle<Result<lock::claim::Claimed>> {
    world.fleet.call(lock::Claim::new("deploy", "holder")).await.unwrap();
    let wait = Some(Duration::from_secs(600).into());
    let waiting = start(&world.fleet, lock::Claim { wait_ms: wait, ..lock::Claim::new("deploy", "waiter") });
    eventually("it waits", async || world.fleet.stats().waiting == 1).await;
    waiting
}

/// Reads, writes, followers of the log and waiting calls all fail with a hint.
async fn everyone_is_told(
    world: &World,
    waiting: JoinHandle<Result<lock::claim::Claimed>>,
    what: &str,
    hint: &str,
) {
    let mut told = vec![
        refused(world.fleet.call(task::Add::new("auth", "late")).await),
        refused(world.fleet.call(event::List::default()).await),
        refused(
            world
                .fleet
                .call(event::List { wait_ms: Some(Duration::from_secs(600).into()), ..Default::default() })
                .await,
        ),
        refused(world.fleet.transaction(|tx| Box::pin(tx.query("select 1 as one", params![]))).await),
    ];
    told.push(refused(tokio::time::timeout(PATIENCE, waiting).await.expect("who waits is told").unwrap()));
    for error in told {
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert!(error.message().contains(what), "{error}");
        assert!(error.hint_text().unwrap().contains(hint), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_replaced_is_noticed() {
    let (world, other) = (World::sqlite().await, World::sqlite().await);
    other.add("of the other fleet").await;
    let copy = format!("{}.new", world.url);
    other.fleet.backup(copy.as_ref()).await.unwrap();
    let waiting = waiter(&world).await;

    fs::rename(&copy, &world.url).unwrap();
    everyone_is_told(&world, waiting, "was replaced by another file", "start them again").await;

    for log in ["-wal", "-shm"] {
        fs::remove_file(format!("{}{log}", world.url)).unwrap();
    }
    let world = world.reopened().await;
    assert_eq!(world.show("auth-1").await.title, "of the other fleet");
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_deleted_is_noticed() {
    let world = World::sqlite().await;
    let waiting = waiter(&world).await;
    fs::remove_file(&world.url).unwrap();
    everyone_is_told(&world, waiting, "was deleted or moved away", "put it back").await;
    assert!(!fs::exists(&world.url).unwrap(), "nobody makes it anew by looking");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_is_copied_into_the_file_is_noticed() {
    let world = World::sqlite().await;
    world.add("first").await;
    let mark = "update fleet set restored = 1";
    world.fleet.transaction(move |tx| Box::pin(tx.execute(mark, params![]))).await.unwrap();
    let refusal = refused(world.claim("auth-1", "a").await);
    assert_eq!(refusal.code(), Code::Unavailable);
    assert!(refusal.message().contains("a backup was copied into"), "{refusal}");
    world.reopened().await.claim("auth-1", "a").await.unwrap();
}

/// The old version has the fleet open while the newer one migrates it.
async fn a_newer_schema_is_noticed(world: World) {
    let waiting = waiter(&world).await;
    let migrate = "update fleet set schema_version = schema_version + 1";
    let newer: Fleet = world.again().await;
    newer.transaction(move |tx| Box::pin(tx.execute(migrate, params![]))).await.unwrap();
    everyone_is_told(&world, waiting, "was brought to schema version", "are upgraded together").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_sqlite_schema_is_noticed() {
    a_newer_schema_is_noticed(World::sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_postgres_schema_is_noticed() {
    a_newer_schema_is_noticed(World::postgres().await).await;
}

/// A migration stores its version where every transaction reads it, on a new fleet and on an existing one.
#[tokio::test]
async fn a_migration_stores_its_version() {
    for world in [World::sqlite().await, World::postgres().await] {
        let about = world.fleet.call(fencepost::admin::About {}).await.unwrap();
        let told = "select schema_version as version from fleet";
        let told = world.fleet.transaction(move |tx| {
            Box::pin(async move { tx.query(told, params![]).await?[0].get::<i64>("version") })
        });
        assert_eq!(told.await.unwrap(), about.database.schema_version);
    }
}
