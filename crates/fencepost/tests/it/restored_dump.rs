//! A PostgreSQL fleet that was restored from a dump in another cluster: calls are refused until `admin/restored`, and
//! the log goes on.

use crate::open_transactions::start;
use fencepost::{Code, admin, event, lock, params, task};
use fencepost_testing::{PATIENCE, World, eventually, world::refused};
use std::time::Duration;

/// Makes the fleet look like a dump in a younger cluster: its transaction numbers are in that cluster's future.
async fn is_put_elsewhere(world: &World, how: &'static str) {
    world.sql("update event set ord = ord + 1000000000000, xact = xact + 1000000000000 where ord >= 0").await;
    world.sql(how).await;
}

async fn is_refused(world: &World) {
    let refusals = [
        refused(world.fleet.call(task::Add::new("auth", "late")).await),
        refused(world.fleet.call(event::List::default()).await),
        refused(world.fleet.transaction(|tx| Box::pin(tx.query("select 1 as one", params![]))).await),
    ];
    for error in refusals {
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert!(error.message().contains("restored here"), "{error}");
        assert!(error.hint_text().unwrap().contains("fence call admin/restored"), "{error:?}");
    }
}

/// Reads from a position to the end, in pages of one. Returns the events and their positions.
async fn read_on(world: &World, mut since: Option<String>, until: &str) -> (Vec<String>, Vec<String>) {
    let (mut told, mut positions) = (Vec::new(), Vec::new());
    eventually("the log is readable", async || {
        let page = event::List { since: since.clone(), limit: Some(1), ..event::List::default() };
        let page = world.fleet.call(page).await.unwrap();
        since = Some(page.position.clone());
        for event in page.events {
            told.push(format!("{} {}", event.kind, event.resource));
            positions.push(event.position);
        }
        told.last().is_some_and(|last| last == until)
    })
    .await;
    (told, positions)
}

const OTHER_CLUSTER: &str = "update fleet set system = '7123456789012345678'";
const OTHER_SCHEMA: &str = "update fleet set system = null, schema_oid = 1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_dump_is_refused_until_admin_restored() {
    for how in [OTHER_CLUSTER, OTHER_SCHEMA] {
        let world = World::postgres().await;
        let before = world.fleet.call(lock::Claim::new("deploy", "holder")).await.unwrap().claim.fence;
        let wait = Some(Duration::from_secs(600).into());
        let waiting = start(&world.fleet, lock::Claim { wait_ms: wait, ..lock::Claim::new("deploy", "b") });
        eventually("it waits", async || world.fleet.stats().waiting == 1).await;

        is_put_elsewhere(&world, how).await;
        is_refused(&world).await;
        is_refused(&world.reopened().await).await;
        let waited = tokio::time::timeout(PATIENCE, waiting).await.expect("who waits is told").unwrap();
        assert_eq!(refused(waited).code(), Code::Unavailable);

        world.fleet.call(admin::Restored {}).await.unwrap();
        let after = world.fleet.call(lock::Claim::new("other", "b")).await.unwrap().claim.fence;
        assert!(after > before + 1_000_000, "{after}");
        world.assert_sound().await;
    }
}

/// New events come after the old ones, and every earlier position stays valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_goes_on_after_a_restore_and_every_position_stays_valid() {
    let world = World::postgres().await;
    world.add("first").await;
    world.add("second").await;
    let mut expected = vec!["task.added task/auth-1".to_owned(), "task.added task/auth-2".into()];
    let (told, mut positions) = read_on(&world, None, &expected[1]).await;
    assert_eq!(told, expected);
    assert!(positions.iter().all(|position| position.split('.').count() == 2), "as ever: {positions:?}");
    for title in ["third", "fourth"] {
        // The numbers given out before the restore are as high as those in the dump.
        let shift = |position: &String| {
            let parts: Vec<i64> = position.split('.').map(|part| part.parse().unwrap()).collect();
            let ord = parts[parts.len() - 2] + 1_000_000_000_000;
            let epoch = if parts.len() == 3 { format!("{}.", parts[0]) } else { String::new() };
            format!("{epoch}{ord}.{}", parts[parts.len() - 1])
        };
        let newest = positions.len() - 2;
        for position in &mut positions[newest..] {
            *position = shift(position);
        }
        is_put_elsewhere(&world, OTHER_CLUSTER).await;
        world.fleet.call(admin::Restored {}).await.unwrap();
        let id = world.add(title).await;
        expected.extend(["fleet.restored fleet".into(), format!("task.added task/{id}")]);
        let until = expected.last().unwrap().clone();
        let (told, all) = read_on(&world, None, &until).await;
        assert_eq!(told, expected);
        assert_eq!(all[..positions.len()], positions, "they read as they did");
        for (n, position) in all.iter().enumerate().take(all.len() - 1) {
            assert_eq!(read_on(&world, Some(position.clone()), &until).await.0, expected[n + 1..]);
        }
        positions = all;
    }
    // Pruning reports a position, too.
    world.pass(1);
    let prune = event::Prune { older_than_ms: Some(fencepost::Millis(0)) };
    eventually("all is pruned", async || {
        world.fleet.call(prune.clone()).await.unwrap();
        world.kinds().await.is_empty()
    })
    .await;
    let late = event::List { since: Some(positions[0].clone()), ..event::List::default() };
    let refusal = refused(world.fleet.call(late).await);
    assert_eq!(refusal.field("oldest"), Some(&positions.last().unwrap().as_str().into()));
    let next = event::List { since: Some("3.1.1".into()), ..event::List::default() };
    assert_eq!(refused(world.fleet.call(next).await).code(), Code::NotFound, "of a restore still to come");
}
