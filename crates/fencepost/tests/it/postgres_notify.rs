//! LISTEN and NOTIFY: nodes on one PostgreSQL notify each other of commits, and survive lost notifications.

use crate::waiting::{answer, next, one_is_held, parked, readable, token, until, waits};
use fencepost::{Fleet, Millis, event, mail, run, task};
use fencepost_testing::{World, eventually, postgres::connect, world::options};
use std::time::Duration;

fn schema_of(world: &World) -> String {
    world.url.split_once("schema=").unwrap().1.split_once('&').unwrap().0.to_owned()
}

/// A world in which waiters are woken by notifications alone, and never by polling.
async fn notified_only() -> World {
    let mut world = World::postgres().await;
    let mut options = options(&world.clock);
    options.fallback.poll = Duration::from_secs(1_000_000);
    world.fleet = Fleet::open_with(&world.url, options).await.unwrap();
    world
}

/// Sends all pending notifications. A flush gives up after a second, which a busy machine may need; then it is repeated.
async fn flush(fleet: &Fleet) {
    for _ in 0..30 {
        let began = tokio::time::Instant::now();
        fleet.flush().await;
        if began.elapsed() < Duration::from_millis(900) {
            return;
        }
    }
}

/// The connections that listen for this fleet.
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
    // It has registered, and the watcher has queried.
    tokio::time::sleep(Duration::from_millis(100)).await;
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_notifies_other_nodes() {
    let world = notified_only().await;
    let (schema, other) = (schema_of(&world), world.again().await);
    let admin = connect(&schema).await;
    one_is_held(&world).await;
    let waiter = waits(&world.fleet, next("b", 600));
    parked(&world.fleet, 1).await;
    let first = until_listening(&admin, &schema, &[]).await;
    other.call(task::Add::new("auth", "two")).await.unwrap();
    assert_eq!(token(waiter).await, "task/auth-2@1");
    until(&other, "it was told by a notice", |now| now.notifications >= 1).await;

    // The connection breaks, and a new one replaces it.
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

/// Completing the head of a strict mailbox frees the next message, and wakes a consumer on another node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completed_message_notifies_other_nodes() {
    let world = notified_only().await;
    let (schema, other) = (schema_of(&world), world.again().await);
    let admin = connect(&schema).await;
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

/// A commit is found even if no connection could listen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_notice_costs_some_seconds() {
    let world = World::postgres().await;
    let schema = schema_of(&world);
    let admin = connect(&schema).await;
    one_is_held(&world).await;
    let waiter = waits(&world.fleet, next("b", 600));
    parked(&world.fleet, 1).await;
    until_listening(&admin, &schema, &[]).await;
    // Directly, so that no notification is sent.
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
async fn many_commits_send_one_notification_and_no_event_sends_none() {
    let world = World::postgres().await;
    let began = tokio::time::Instant::now();
    for n in 0..200 {
        world.fleet.call(task::Add::new("auth", format!("{n}"))).await.unwrap();
    }
    flush(&world.fleet).await;
    let told = world.fleet.stats().notifications;
    // One at once, and then one for all commits of 5 ms.
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

/// A process that flushes and then ends has notified the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_sends_notifications() {
    let world = notified_only().await;
    let (schema, url) = (schema_of(&world), world.url.clone());
    let admin = connect(&schema).await;
    one_is_held(&world).await;
    for round in 0..5 {
        let waiter = waits(&world.fleet, next(&format!("b{round}"), 600));
        parked(&world.fleet, 1).await;
        until_listening(&admin, &schema, &[]).await;
        let (url, options) = (url.clone(), options(&world.clock));
        // A separate runtime, which ends with the reply.
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

/// The event is committed, but an older transaction still runs. It becomes readable when that ends, and nothing of ours is
/// written then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_wakes_when_an_older_transaction_ends() {
    let world = World::postgres().await;
    let schema = world.url.split_once("schema=").unwrap().1.split_once('&').unwrap().0;
    world.add("one").await;
    readable(&world).await;
    let position = world.fleet.call(event::List::default()).await.unwrap().position;
    let older = connect(schema).await;
    older.batch_execute("begin; select pg_current_xact_id()").await.unwrap();
    let follow =
        event::List { since: Some(position), wait_ms: Some(Millis::seconds(60)), ..Default::default() };
    let waiter = waits(&world.fleet, follow);
    parked(&world.fleet, 1).await;
    let before = world.fleet.stats().round_trips;
    world.add("two").await;
    // The watcher has woken it, and it found nothing.
    until(&world.fleet, "it looked", |now| now.round_trips >= before + 8 && now.waiting == 1).await;
    assert!(!waiter.is_finished());
    older.batch_execute("commit").await.unwrap();
    let page = answer(waiter).await.unwrap();
    assert_eq!(page.events[0].resource, "task/auth-2");
}
