//! Broken connections and stopped servers: every op is done once, and an unknown outcome is reported.

use crate::{
    postgres_proxy::{Cut, Proxy},
    waiting::{parked, token, until, waits},
};
use fencepost::{Code, Fleet, Millis, task};
use fencepost_testing::{
    PATIENCE, eventually,
    postgres::{Cluster, connect, fresh_schema, url as postgres_url},
    world::refused,
};
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// A proxy, the fleet's address through it, and the fleet's schema.
async fn proxy() -> (Proxy, String, String) {
    let schema = fresh_schema();
    let url = postgres_url(&schema);
    let server = url.split_once('@').unwrap().1.split_once('/').unwrap().0.to_owned();
    let proxy = Proxy::to(&server).await;
    let url = url.replace(&server, &format!("127.0.0.1:{}", proxy.port));
    (proxy, url, schema)
}

async fn through_a_proxy() -> (Fleet, Proxy, String) {
    let (proxy, url, schema) = proxy().await;
    (Fleet::open(&url).await.unwrap(), proxy, schema)
}

#[tokio::test]
async fn now_is_the_databases_clock() {
    const HOUR: i64 = 3_600_000;
    let (proxy, url, schema) = proxy().await;
    proxy.set_the_servers_clock_ahead_an_hour();
    let fleet = Fleet::open(&url).await.unwrap();
    let raw = connect(&schema).await;
    let sql = "select floor(extract(epoch from clock_timestamp()) * 1000)::bigint";
    let now = async || raw.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) + HOUR;
    fleet.call(task::Add::new("auth", "first")).await.unwrap();
    let before = now().await;
    let claimed = fleet.call(task::Claim::next("auth", "r1")).await.unwrap().claim.claimed_at.0;
    // One more millisecond, because the time is rounded.
    assert!((before..=now().await + 1).contains(&claimed), "{before} {claimed}");
}

async fn stored(schema: &str) -> i64 {
    let sql = "select count(*) from task where title = 'once'";
    connect(schema).await.query_one(sql, &[]).await.unwrap().get(0)
}

fn once() -> task::Add {
    task::Add { request: Some("ask-1".into()), ..task::Add::new("auth", "once") }
}

#[tokio::test]
async fn a_claim_and_a_completion_are_at_most_five_flights_on_the_wire() {
    let (fleet, proxy, _) = through_a_proxy().await;
    let mut least = (u64::MAX, u64::MAX);
    // The first round prepares the statements. Of the others the smallest counts.
    for round in 0..4 {
        fleet.call(task::Add::new("auth", "first")).await.unwrap();
        if round == 1 {
            proxy.slow();
        }
        let start = proxy.flights();
        let token = fleet.call(task::Claim::next("auth", "r1")).await.unwrap().claim.token;
        let claimed = proxy.flights();
        fleet.call(task::Done { token, output: Some("built".into()) }).await.unwrap();
        if round > 0 {
            least = (least.0.min(claimed - start), least.1.min(proxy.flights() - claimed));
        }
    }
    println!("on the wire: a claim {} flights, a completion {}", least.0, least.1);
    assert!((3..=5).contains(&least.0) && (3..=5).contains(&least.1), "{least:?}");
}

#[tokio::test]
async fn a_commit_whose_reply_was_lost_is_unknown_and_can_be_repeated() {
    for (cut, did) in [(Cut::Before("commit"), 0), (Cut::AfterCommit, 1)] {
        let (fleet, proxy, schema) = through_a_proxy().await;
        fleet.call(task::Add::new("auth", "warms up")).await.unwrap();
        let commits = proxy.commits();
        proxy.cut(cut);
        let error = refused(fleet.call(once()).await);
        assert_eq!(error.code(), Code::OutcomeUnknown, "{cut:?}: {error:?}");
        assert!(error.hint_text().unwrap().contains("same request id"), "{error:?}");
        assert_eq!(proxy.commits(), commits + 1, "{cut:?}: it was tried again by itself");
        assert_eq!(stored(&schema).await, did, "{cut:?}");
        let added = fleet.call(once()).await.unwrap().task;
        assert_eq!((added.id.as_str(), stored(&schema).await), ("auth-2", 1), "{cut:?}");

        proxy.cut(cut);
        let claim = task::Claim { request: Some("ask-2".into()), ..task::Claim::of("auth-2", "r1") };
        assert_eq!(refused(fleet.call(claim.clone()).await).code(), Code::OutcomeUnknown);
        let token = fleet.call(claim).await.unwrap().claim.token;
        assert_eq!(token, "task/auth-2@1", "{cut:?}");

        proxy.cut(cut);
        let done = task::Done { token, output: Some("built".into()) };
        assert_eq!(refused(fleet.call(done.clone()).await).code(), Code::OutcomeUnknown);
        assert_eq!(fleet.call(done).await.unwrap().task.status, task::Status::Completed);
        assert!(fleet.call(fencepost::admin::Check {}).await.unwrap().ok);
    }
}

#[tokio::test]
async fn a_call_whose_connection_breaks_before_the_commit_is_retried() {
    let (fleet, proxy, schema) = through_a_proxy().await;
    fleet.call(task::Add::new("auth", "warms up")).await.unwrap();
    for (n, part) in
        ["begin", "clock_timestamp", "insert into task(", "insert into event("].into_iter().enumerate()
    {
        proxy.cut(Cut::Before(part));
        let add = task::Add { request: None, ..once() };
        fleet.call(add).await.unwrap_or_else(|e| panic!("{part}: {e}"));
        assert_eq!(stored(&schema).await, n as i64 + 1, "{part}");
    }
}

#[tokio::test]
async fn a_lost_reply_about_expiry_does_not_fail_the_caller() {
    let (fleet, proxy, _) = through_a_proxy().await;
    fleet.call(task::Add::new("auth", "first")).await.unwrap();
    fleet.call(task::Claim::next("auth", "dead")).await.unwrap();
    let schema_wide = fleet.transaction(|tx| {
        Box::pin(
            async move { tx.execute("update run set expires_at = ?1", fencepost::params![tx.now]).await },
        )
    });
    schema_wide.await.unwrap();
    // The first commit of this call is the expiry of the dead run; the second is the claim's own.
    proxy.cut(Cut::AfterCommit);
    let claimed = fleet.call(task::Claim::next("auth", "r1")).await.unwrap();
    assert_eq!(claimed.claim.token, "task/auth-1@2");
}

#[tokio::test]
async fn waiters_survive_a_database_outage() {
    for in_a_look in [true, false] {
        let (fleet, proxy, schema) = through_a_proxy().await;
        let other = Fleet::open(&postgres_url(&schema)).await.unwrap();
        let add = async |title: &str| drop(other.call(task::Add::new("auth", title)).await.unwrap());
        add("held").await;
        other.call(task::Claim::next("auth", "other")).await.unwrap();
        let claim = |run: String| task::Claim {
            wait_ms: Some(Millis::seconds(600)),
            ..task::Claim::next("auth", run)
        };
        let waiting: Vec<_> = (0..5).map(|n| waits(&fleet, claim(format!("r{n}")))).collect();
        parked(&fleet, 5).await;
        if in_a_look {
            // The watcher keeps trying for the waiting calls.
            proxy.cut(Cut::All("skip locked"));
            add("first").await;
        } else {
            proxy.shut();
        }
        until(&fleet, "it is missed", |_| proxy.turned_away() >= 5).await;
        assert!(waiting.iter().all(|waiter| !waiter.is_finished()), "nobody was told");
        let told = refused(fleet.call(claim("late".into())).await);
        assert_eq!(told.code(), Code::Unavailable, "who comes now is told: {told:?}");
        assert!(told.hint_text().is_some(), "{told:?}");
        // No waiter notices.
        add("while it was away").await;
        proxy.open();
        parked(&fleet, if in_a_look { 3 } else { 4 }).await;
        for title in ["2", "3", "4", "5"] {
            add(title).await;
        }
        let mut tokens = BTreeSet::new();
        for waiter in waiting {
            tokens.insert(token(waiter).await);
        }
        assert_eq!(tokens.len(), 5);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_server_is_survived() {
    let server = tokio::task::spawn_blocking(Cluster::start).await.unwrap();
    let url = server.url();
    let fleet = Fleet::open(&url).await.unwrap();
    let add =
        |n: usize| task::Add { key: Some(format!("key {n}")), ..task::Add::new("auth", format!("task {n}")) };
    fleet.call(add(0)).await.unwrap();

    // Calls during a crash: each succeeds or fails with a clear code, and all can be repeated.
    let restarted = Arc::new(AtomicBool::new(false));
    let busy = tokio::spawn({
        let (fleet, restarted) = (fleet.clone(), restarted.clone());
        async move {
            let mut failed = Vec::new();
            for n in 1..100_000 {
                match fleet.call(add(n)).await {
                    Ok(_) if restarted.load(Ordering::SeqCst) => return (n, failed),
                    Ok(_) => {}
                    Err(e) => failed.push((n, e)),
                }
            }
            panic!("the restart never ended");
        }
    });
    tokio::task::block_in_place(|| server.restart());
    restarted.store(true, Ordering::SeqCst);
    let (last, failed) = tokio::time::timeout(PATIENCE, busy).await.expect("it goes on").unwrap();
    for (n, error) in &failed {
        assert!([Code::Unavailable, Code::OutcomeUnknown].contains(&error.code()), "{error:?}");
        assert!(error.hint_text().is_some(), "{error:?}");
        fleet.call(add(*n)).await.unwrap();
    }
    let sql = "select count(*) as n, count(distinct title) as titles from task";
    let counted = fleet.transaction(move |tx| {
        Box::pin(async move {
            let row = tx.query(sql, fencepost::params![]).await?.remove(0);
            Ok((row.get::<i64>("n")?, row.get::<i64>("titles")?))
        })
    });
    assert_eq!(counted.await.unwrap(), (last as i64 + 1, last as i64 + 1));
    assert!(fleet.call(fencepost::admin::Check {}).await.unwrap().ok);

    let open = async |url: String| {
        let error = refused(Fleet::open(&url).await);
        assert_eq!(error.code(), Code::Unavailable, "{error:?}");
        format!("{}\nhint: {}", error.message(), error.hint_text().unwrap_or("-"))
    };
    insta::assert_snapshot!(open(url.replace("/postgres?", "/nowhere?")).await, @r#"
    PostgreSQL refuses the connection: database "nowhere" does not exist
    hint: check the user, the password and the database in the address
    "#);
    insta::assert_snapshot!(open(url.replace("fence@", "nobody@")).await, @r#"
    PostgreSQL refuses the connection: role "nobody" does not exist
    hint: check the user, the password and the database in the address
    "#);
    // From here on the server requires a password.
    let rules = "host all all 127.0.0.1/32 scram-sha-256\n";
    let password = fleet.transaction(move |tx| {
        Box::pin(async move {
            tx.execute("alter role fence password 'right'", fencepost::params![]).await?;
            let file = tx.query("select current_setting('hba_file') as at", fencepost::params![]).await?;
            file[0].get::<String>("at")
        })
    });
    std::fs::write(password.await.unwrap(), rules).unwrap();
    let reload = fleet.transaction(|tx| {
        Box::pin(async move { tx.query("select pg_reload_conf() as done", fencepost::params![]).await })
    });
    reload.await.unwrap();
    eventually("a password is asked for", async || Fleet::open(&url).await.is_err()).await;
    insta::assert_snapshot!(open(url.clone()).await, @r#"
    PostgreSQL cannot be logged in to: invalid configuration: password missing
    hint: check the user, the password and the database in the address
    "#);
    insta::assert_snapshot!(open(url.replace("fence@", "fence:wrong@")).await, @r#"
    PostgreSQL refuses the connection: password authentication failed for user "fence"
    hint: check the user, the password and the database in the address
    "#);
    Fleet::open(&url.replace("fence@", "fence:right@")).await.expect("the right password");

    tokio::task::block_in_place(|| server.stop());
    let stopped = tokio::time::timeout(PATIENCE, fleet.call(add(0))).await.expect("quickly");
    let error = refused(stopped);
    assert_eq!(error.code(), Code::Unavailable, "{error:?}");
    assert!(error.hint_text().unwrap().contains("is it running"), "{error:?}");
    let port = url.split_once("127.0.0.1:").unwrap().1.split('/').next().unwrap().to_owned();
    insta::assert_snapshot!(open(url.clone()).await.replace(&port, "PORT"), @r#"
    PostgreSQL cannot be reached: error connecting to server: Connection refused (os error 111)
    hint: is it running, and is the address right?
    "#);
}
