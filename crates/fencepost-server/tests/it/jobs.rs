//! Background jobs.

use crate::world::World;
use fencepost::lock;
use fencepost_server::App;
use fencepost_testing::{eventually, on_both};
use serde_json::{Value, json};
use std::time::Duration;

/// Several servers with jobs on one fleet.
fn servers(world: &World, n: usize) -> Vec<(App, tokio::task::JoinHandle<()>)> {
    let often = |settings: &mut fencepost_server::Settings| {
        settings.tick = Duration::from_millis(5);
        settings.prune_every = Duration::from_millis(5);
    };
    let server = |_| {
        let app = world.with(often).app;
        (app.clone(), tokio::spawn(fencepost_server::run_jobs(app)))
    };
    (0..n).map(server).collect()
}

async fn stop(servers: Vec<(App, tokio::task::JoinHandle<()>)>) {
    for (app, jobs) in servers {
        app.stop();
        jobs.await.expect("it ends when the server stops");
    }
}

/// The kinds of the resource's events, from the table.
async fn kinds(world: &World, resource: &'static str) -> Vec<String> {
    let rows = world.fleet.transaction(move |tx| {
        Box::pin(async move {
            let rows = tx.query(
                "select kind from event where resource = ?1 order by id",
                fencepost::params![resource],
            );
            rows.await?.iter().map(|row| row.get("kind")).collect::<fencepost::Result<Vec<String>>>()
        })
    });
    rows.await.expect("the log")
}

on_both! {
    async fn a_dead_runs_task_becomes_free_without_a_claim(world: World) {
        world.ok("task/add", json!({ "board": "auth", "title": "one" })).await;
        world.ok("task/claim", json!({ "run": "dead", "ttl_ms": 1000 })).await;
        let servers = servers(&world, 3);
        let status = async || -> Value { world.ok("task/show", json!({ "task": "auth-1" })).await["task"]["status"].clone() };
        assert_eq!(status().await, "in_progress");
        world.clock.advance(Duration::from_secs(2));
        eventually("the task is free again", async || status().await == "unassigned").await;
        eventually("nothing is due any more", async || world.ok("admin/due", json!({})).await["due"] == false).await;
        stop(servers).await;
        assert_eq!(kinds(&world, "task/auth-1").await.iter().filter(|kind| *kind == "task.lapsed").count(), 1);
        let left = world.ok("claim/list", json!({})).await;
        assert_eq!(left["claims"], json!([]), "servers hold nothing while there is nothing to do");
    }

    async fn a_fleet_with_nothing_to_do_has_no_trace_of_its_servers(world: World) {
        world.ok("task/add", json!({ "board": "auth", "title": "one" })).await;
        let servers = servers(&world, 2);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(kinds(&world, "lock/fence/expiry").await, Vec::<String>::new());
        stop(servers).await;
    }

    async fn one_server_prunes_at_a_time(world: World) {
        world.ok("task/add", json!({ "board": "auth", "title": "old" })).await;
        world.ok("task/cancel", json!({ "task": "auth-1" })).await;
        world.pass_in_use(40 * 86_400).await;
        // Another server holds the lock.
        let held = world.fleet.call(lock::Claim::new("fence/prune", "another")).await.expect("the lock").claim.token;
        let servers = servers(&world, 3);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(world.post("task/show", json!({ "task": "auth-1" })).await.0, 200, "the other server prunes");
        world.ok("claim/release", json!({ "token": held })).await;
        eventually("the old task is gone", async || world.post("task/show", json!({ "task": "auth-1" })).await.0 == 404).await;
        stop(servers).await;
    }
}
