//! How nodes on one PostgreSQL tell each other what they commit, and what happens if that is lost.

use crate::{
    postgres_store::raw,
    waiting::{answer, next, one_is_held, parked, readable, token, until, waits},
    world::{World, eventually, options},
};
use fencepost::{Fleet, Millis, event, mail, run, task};
use std::time::Duration;

fn schema_of(world: &World) -> String {
    world.url.split_once("schema=").unwrap().1.split_once('&').unwrap().0.to_owned()
}

/// A world in which who waits finds what it is told of, and nothing by a poll.
async fn only_told() -> World {
    let mut world = World::postgres().await;
    let mut options = options(&world.clock);
    options.fallback.poll = Duration::from_secs(1_000_000);
    world.fleet = Fleet::open_with(&world.url, options).await.unwrap();
    world
}

/// All that was committed is told. A flush gives up after a second, which a busy machine may need: then it is asked again.
async fn flush(fleet: &Fleet) {
    for _ in 0..30 {
        let began = tokio::time::Instant::now();
        fleet.flush().await;
        if began.elapsed() < Duration::from_millis(900) {
            return;
        }
    }
}

/// The connections that listen for this fleet's news.
async fn listeners(admin: &tokio_postgres::Client, schema: &str) -> Vec<i32> {
    let name = format!("fence_{schema}");
    let ask =
        "select pid from pg_stat_activity where application_name = $1 and query <> '' and state = 'idle'";
    let rows = admin.query(ask, &[&name]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn until_listening(admin: &tokio_postgres::Client, schema: &str, not: &[i32]) -> Vec<i32> {
    let mut found = Vec::new();
    eventually("somebody listens", async || {
        found = listeners(admin, schema).await;
        !found.is_empty() && !found.iter().any(|pid| not.contains(pid))
    })
    .await;
    // It has said so, and the watcher has asked.
    tokio::time::sleep(Duration::from_millis(100)).await;
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_nodes_commit_is_told() {
    let world = only_told().await;
    let (schema, other) = (schema_of(&world), world.again().await);
    let admin = raw(&schema).await;
    one_is_held(&world).await;
    let waiter = waits(&world.fleet, next("b", 600));
    parked(&world.fleet, 1).await;
    let first = until_listening(&admin, &schema, &[]).await;
    other.call(task::Add::new("auth", "two")).await.unwrap();
    assert_eq!(token(waiter).await, "task/auth-2@1");
    until(&other, "it was told by a notice", |now| now.notifications >= 1).await;

    // The connection breaks: another is made, and goes on.
    let waiter = waits(&world.fleet, next("c", 600));
    parked(&world.fleet, 1).await;
    admin
        .execute("select pg_terminate_backend(pid) from pg_stat_activity where pid = any($1)", &[&first])
        .await
        .unwrap();
    until_listening(&admin, &schema, &first).await;
    other.call(task::Add::new("auth", "three")).await.unwrap();
    assert_eq!(token(waiter).await, "task/auth-3@1");
}

/// Completing the head of a strict mailbox lets the next message go: another node's consumer is woken for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completed_message_is_told() {
    let world = only_told().await;
    let (schema, other) = (schema_of(&world), world.again().await);
    let admin = raw(&schema).await;
    world
        .story(
            "
            mail/configure s strict=true   -> settings.strict=true
            mail/push s payload=1          -> id=1
            mail/push s payload=2          -> id=2
            mail/claim s run=a             -> claims=message/1@1
        ",
        )
        .await;
    let claim = mail::Claim { wait_ms: Some(Millis::seconds(600)), ..mail::Claim::next("s", "b") };
    let waiter = waits(&world.fleet, claim);
    parked(&world.fleet, 1).await;
    until_listening(&admin, &schema, &[]).await;
    other.call(mail::Done { token: "message/1@1".into(), ..Default::default() }).await.unwrap();
    assert_eq!(answer(waiter).await.unwrap().claims[0].claim.token, "message/2@1");
}

/// What is committed while nobody can listen is found all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_notice_costs_some_seconds() {
    let world = World::postgres().await;
    let schema = schema_of(&world);
    let admin = raw(&schema).await;
    one_is_held(&world).await;
    let waiter = waits(&world.fleet, next("b", 600));
    parked(&world.fleet, 1).await;
    until_listening(&admin, &schema, &[]).await;
    // By hand, so that nobody is told.
    admin
        .batch_execute(
            "insert into task(board, n, title, priority, max_attempts, created_at, status, updated_at)
           values ('auth', 77, 'silent', 50, 3, 1, 'unassigned', 1);
         insert into task_doc(task) select seq from task where n = 77;
         insert into event(at, kind, resource) values (1, 'task.added', 'task/auth-77');",
        )
        .await
        .unwrap();
    assert_eq!(token(waiter).await, "task/auth-77@1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_commits_are_one_notice_and_no_event_is_none() {
    let world = World::postgres().await;
    let began = tokio::time::Instant::now();
    for n in 0..200 {
        world.fleet.call(task::Add::new("auth", format!("{n}"))).await.unwrap();
    }
    flush(&world.fleet).await;
    let told = world.fleet.stats().notifications;
    // One at once, and then one for the commits of 5 ms, however fast these are.
    let most = began.elapsed().as_millis() as u64 / 5 + 1;
    assert!((1..=most).contains(&told), "{told} notices for 200 commits, and not {most}");

    world.claim_next("a").await.unwrap();
    flush(&world.fleet).await;
    let before = world.fleet.stats().notifications;
    world.pass(20);
    world.fleet.call(run::Renew { run: "a".into(), ttl_ms: None }).await.unwrap();
    world.fleet.call(task::List::default()).await.unwrap();
    flush(&world.fleet).await;
    assert_eq!(world.fleet.stats().notifications, before);
}

/// A process that ends right after its call has told the others, if it flushed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_flushed_is_told() {
    let world = only_told().await;
    let (schema, url) = (schema_of(&world), world.url.clone());
    let admin = raw(&schema).await;
    one_is_held(&world).await;
    for round in 0..5 {
        let waiter = waits(&world.fleet, next(&format!("b{round}"), 600));
        parked(&world.fleet, 1).await;
        until_listening(&admin, &schema, &[]).await;
        let (url, options) = (url.clone(), options(&world.clock));
        // A runtime of its own, which is gone as soon as the call is answered.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let fleet = Fleet::open_with(&url, options).await.unwrap();
                fleet.call(task::Add::new("auth", "x")).await.unwrap();
                flush(&fleet).await;
            });
        });
        token(waiter).await;
    }
}

/// The event is committed, but an older transaction still runs: it can be read when that is over, and nothing
/// of ours is written then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_is_told_when_an_older_transaction_is_over() {
    let world = World::postgres().await;
    let schema = world.url.split_once("schema=").unwrap().1.split_once('&').unwrap().0;
    world.add("one").await;
    readable(&world).await;
    let position = world.fleet.call(event::List::default()).await.unwrap().position;
    let older = raw(schema).await;
    older.batch_execute("begin; select pg_current_xact_id()").await.unwrap();
    let follow =
        event::List { since: Some(position), wait_ms: Some(Millis::seconds(60)), ..Default::default() };
    let waiter = waits(&world.fleet, follow);
    parked(&world.fleet, 1).await;
    let before = world.fleet.stats().round_trips;
    world.add("two").await;
    // The watcher has told it, and it has looked in vain.
    until(&world.fleet, "it looked", |now| now.round_trips >= before + 8 && now.waiting == 1).await;
    assert!(!waiter.is_finished());
    older.batch_execute("commit").await.unwrap();
    let page = answer(waiter).await.unwrap();
    assert_eq!(page.events[0].resource, "task/auth-2");
}
