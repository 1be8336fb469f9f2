//! Expiry never waits and never fails a caller: a locked row or a bad row stops nobody else.

use crate::open_transactions::{hold, start};
use fencepost::{Code, Fleet, Millis, admin, agent, claim::Verdict, lock, mail, params, run, task};
use fencepost_testing::{
    PATIENCE, World, eventually, on_both,
    postgres::{fresh_schema, url as postgres_url},
    world::{code, patient, refused},
};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Semaphore, mpsc};

fn lock_for_30s(name: &str, run: &str) -> lock::Claim {
    lock::Claim { ttl_ms: Some(Millis::seconds(30)), ..lock::Claim::new(name, run) }
}

/// Tasks of one dead run. The last ones, which are given back last, have a tag.
async fn dead_run(world: &World, tasks: usize, tagged: usize) {
    let item = |tags: &[&str]| task::plan::Item {
        title: "one of many".into(),
        tags: tags.iter().map(ToString::to_string).collect(),
        ..task::plan::Item::default()
    };
    let mut items = vec![item(&[]); tasks - tagged];
    items.extend(vec![item(&["last"]); tagged]);
    let plan = task::Plan { board: Some("auth".into()), tasks: items, request: None };
    world.fleet.call(plan).await.unwrap();
    let many = task::ClaimMany {
        count: tasks as i64,
        run: "dead".into(),
        ttl_ms: Some(Millis::seconds(30)),
        ..task::ClaimMany::default()
    };
    assert_eq!(world.fleet.call(many).await.unwrap().claims.len(), tasks);
    world.pass(30);
}

on_both! {
    /// An empty poll is a reply, not an error: it repeats batch and search all the same.
    async fn an_empty_poll_repeats_while_expiry_goes_on(world: World) {
        let join = agent::Join { agent: "bob".into(), ..agent::Join::default() };
        world.fleet.call(join).await.unwrap();
        dead_run(&world, 600, 1).await;
        let poll = agent::Poll {
            agent: "bob".into(), run: "b1".into(), tag: Some("last".into()), ..agent::Poll::default()
        };
        let trigger = world.fleet.call(poll).await.unwrap().trigger.expect("the task with the tag");
        assert_eq!(trigger.claims[0].token, "task/auth-600@2");
    }

    /// A batch keeps failing and is retried; claims do not fail with it.
    async fn a_bad_row_of_a_dead_run_fails_no_caller(world: World) {
        world.push("s", "bad").await;
        world.claim_mail("s", "dead", 1).await.unwrap();
        world.push("s", "good").await;
        world.add("first").await;
        world.pass(30);
        let status = async |from: &'static str, to: &'static str| {
            let sql = "update message set status = ?2 where status = ?1";
            let write = world.fleet.transaction(move |tx| Box::pin(tx.execute(sql, params![from, to])));
            assert_eq!(write.await.unwrap(), 1);
        };
        status("processing", "nonsense").await;
        assert_eq!(world.claim_next("a").await.unwrap(), "task/auth-1@1");
        assert_eq!(world.claim_mail("s", "b", 1).await.unwrap(), ["message/2@1"]);
        world.fleet.call(lock_for_30s("deploy", "c")).await.unwrap();
        status("nonsense", "processing").await;
        assert_eq!(world.claim_mail("s", "d", 1).await.unwrap(), ["message/1@2"]);
    }
}

/// A claim that must wait for many batches lets others in between.
#[tokio::test]
async fn other_calls_run_between_batches_of_expiry() {
    let world = World::sqlite().await;
    dead_run(&world, 1000, 0).await;
    let order = Mutex::new(Vec::new());
    let claim = async {
        let tagged = task::Claim { tag: Some("none".into()), ..task::Claim::next("auth", "b") };
        assert_eq!(code(world.fleet.call(tagged).await), Code::NoneReady);
        order.lock().unwrap().push("claim");
    };
    let push = async {
        world.push("s", "in between").await;
        order.lock().unwrap().push("push");
    };
    // The claim comes first: four batches are due, and the push gets in after one.
    tokio::join!(biased; claim, push);
    assert_eq!(*order.lock().unwrap(), ["push", "claim"]);
    assert!(!world.fleet.call(admin::Due {}).await.unwrap().due);
}

/// A frozen node has locked one row of each kind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_locked_by_a_frozen_node_stop_nobody_else() {
    let world = World::postgres().await;
    let strict = mail::Configure { mailbox: "strict".into(), strict: Some(true), ..Default::default() };
    world.fleet.call(strict).await.unwrap();
    for _ in 0..2 {
        world.add("work").await;
        world.push("s", "work").await;
        world.push("strict", "work").await;
    }
    for _ in 0..2 {
        world.claim_next("dead").await.unwrap();
    }
    world.claim_mail("s", "dead", 2).await.unwrap();
    world.claim_mail("strict", "dead", 1).await.unwrap();
    for name in ["one", "two"] {
        world.fleet.call(lock_for_30s(name, "dead")).await.unwrap();
    }
    world.add("capped").await;
    let capped = task::Claim { max_ms: Some(Millis::seconds(10)), ..task::Claim::of("auth-3", "lives") };
    world.fleet.call(capped).await.unwrap();
    world.pass(30);
    let frozen = hold(
        &world,
        "with t as (select 1 from task where n in (1, 3) for update),
           m as (select 1 from message where id = 1 for update),
           l as (select 1 from lock where name = 'one' for update)
         select (select count(*) from t), (select count(*) from m), (select count(*) from l),
           pg_advisory_xact_lock(hashtextextended(current_schema() || ' strict ', 1)) is null",
        "select 1",
    )
    .await;
    // Everything that is not locked comes back, of each kind, without waiting for the frozen node.
    let claims = start(&world.fleet, task::Claim::next("auth", "a"));
    assert!(!frozen.holds_up(&world, &claims).await);
    assert_eq!(claims.await.unwrap().unwrap().claim.token, "task/auth-2@2");
    let runs = world.fleet.call(run::List { all: true, ..run::List::default() }).await.unwrap().runs;
    assert!(runs.iter().any(|run| run.name == "dead" && run.ended_at.is_some() && !run.lapsed), "{runs:?}");
    assert_eq!(world.claim_mail("s", "b", 5).await.unwrap(), ["message/3@2"]);
    world.fleet.call(lock_for_30s("two", "c")).await.unwrap();
    world.fleet.call(lock_for_30s("new", "c")).await.unwrap();
    assert_eq!(code(world.claim_mail("strict", "d", 1).await), Code::NoneReady);
    world.assert_sound().await;

    frozen.commit().await.unwrap();
    assert_eq!(world.claim_mail("strict", "d", 1).await.unwrap(), ["message/2@2"]);
    assert_eq!(world.claim_mail("s", "b", 5).await.unwrap(), ["message/1@2"]);
    assert_eq!(world.claim_next("a").await.unwrap(), "task/auth-1@2");
    assert_eq!(world.claim_next("a").await.unwrap(), "task/auth-3@2");
    assert_eq!(world.guard("lock/one@1").await, Verdict::LeaseExpired);
    world.assert_sound().await;
}

/// A whole batch of dead runs holds only locked items. The run after them is still found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_whose_items_are_locked_do_not_hide_the_next() {
    let world = World::postgres().await;
    for n in 1..=130 {
        world.add("work").await;
        world.claim_next(&format!("dead-{n}")).await.unwrap();
    }
    world.pass(30);
    let frozen = hold(&world, "select 1 from task where n < 130 for update", "select 1").await;
    assert_eq!(world.claim_next("a").await.unwrap(), "task/auth-130@2");
    assert_eq!(code(world.claim_next("a").await), Code::NoneReady);
    frozen.commit().await.unwrap();
    assert_eq!(world.claim_next("a").await.unwrap(), "task/auth-1@2");
    world.assert_sound().await;
}

/// A run whose lease is over must be ended before its name can be used again. This is the only wait, and it is short.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lapsed_name_waits_a_second_for_its_locked_row() {
    let world = World::postgres().await;
    world.add("first").await;
    world.claim_next("a").await.unwrap();
    world.pass(30);
    let frozen = hold(&world, "select 1 from run where name = 'a' for update", "select 1").await;
    let refusal = refused(world.claim_next("a").await);
    assert_eq!(refusal.code(), Code::Unavailable);
    assert!(refusal.message().contains("another transaction is using the run"), "{refusal}");
    // In an embedder's transaction, too; later statements there keep the normal time limit.
    let embedded = world.fleet.transaction(|tx| Box::pin(tx.call(task::Claim::next("auth", "a")))).await;
    assert_eq!(code(embedded), Code::Unavailable);
    frozen.commit().await.unwrap();
    let patience = world.fleet.transaction(|tx| {
        Box::pin(async move {
            tx.call(task::Claim::next("auth", "a")).await?;
            tx.query("select current_setting('lock_timeout') as patience", params![]).await?[0]
                .get::<String>("patience")
        })
    });
    assert_eq!(patience.await.unwrap(), "10min");
    world.assert_sound().await;
}

/// The server ends the transaction and releases its locks. Nothing was committed, so it runs again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_transaction_is_ended_and_runs_again() {
    let url = postgres_url(&fresh_schema());
    let mut options = patient();
    // Far longer than a busy machine pauses between two statements. The migrations are not bound by it.
    options.idle_limit = Duration::from_secs(2);
    drop(Fleet::open_with(&url, patient()).await.unwrap());
    let fleet = Fleet::open_with(&url, options).await.unwrap();
    fleet.call(task::Add::new("auth", "first")).await.unwrap();
    let tries = Arc::new(AtomicU32::new(0));
    let (pids, mut first) = mpsc::unbounded_channel();
    let ended = Arc::new(Semaphore::new(0));
    let (counted, until) = (tries.clone(), ended.clone());
    let frozen = tokio::spawn(async move {
        let work = fleet.transaction(move |tx| {
            let (tries, pids, ended) = (counted.clone(), pids.clone(), until.clone());
            Box::pin(async move {
                let locked =
                    tx.query("select pg_backend_pid() as pid from task for update", params![]).await?;
                if tries.fetch_add(1, Ordering::SeqCst) == 0 {
                    let _ = pids.send(locked[0].get::<i64>("pid")?);
                    let _ = ended.acquire().await;
                }
                tx.execute("update task set title = 'again'", params![]).await
            })
        });
        work.await
    });
    let pid = first.recv().await.unwrap();
    let watcher = Fleet::open_with(&url, patient()).await.unwrap();
    eventually("the server ends it", async || {
        let sql = "select count(*) as n from pg_stat_activity where pid = ?1";
        let alive = watcher.transaction(move |tx| {
            Box::pin(async move { tx.query(sql, params![pid]).await?[0].get::<i64>("n") })
        });
        alive.await.unwrap() == 0
    })
    .await;
    ended.add_permits(1);
    assert_eq!(tokio::time::timeout(PATIENCE, frozen).await.expect("no hang").unwrap().unwrap(), 1);
    assert!(tries.load(Ordering::SeqCst) >= 2);
}

/// The server notices a node that vanished.
#[tokio::test]
async fn the_server_gets_keepalive_settings() {
    let fleet = Fleet::open(&postgres_url(&fresh_schema())).await.unwrap();
    let setting = async |name: &'static str| {
        let sql = "select current_setting(?1) as value";
        let read = fleet.transaction(move |tx| {
            Box::pin(async move { tx.query(sql, params![name]).await?[0].get::<String>("value") })
        });
        read.await.unwrap()
    };
    assert_eq!(setting("idle_in_transaction_session_timeout").await, "10s");
    assert_eq!(setting("tcp_keepalives_idle").await, "10");
    assert_eq!(setting("tcp_keepalives_interval").await, "5");
    assert_eq!(setting("tcp_keepalives_count").await, "3");
    assert_eq!(setting("tcp_user_timeout").await, "25000");
}
