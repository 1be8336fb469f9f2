//! PostgreSQL: round trips, retries, the pool, the database's clock.

use fencepost::{
    Code, Error, Fleet, ManualClock, Options, Result, Stmt, Time, agent, inbox, params, run, task,
};
use fencepost_testing::{
    PATIENCE, World, eventually, on_both,
    postgres::{connect, fresh_schema, url as postgres_url},
    world::{START, code, options, patient, refused},
};
use futures_util::future::join_all;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::sync::Barrier;

async fn raw_count(schema: &str, sql: &str) -> i64 {
    count(&connect(schema).await, sql).await
}

async fn count(raw: &tokio_postgres::Client, sql: &str) -> i64 {
    raw.query_one(sql, &[]).await.unwrap().get(0)
}

/// A fleet in a schema of its own, with a clock that stands still.
async fn with(change: impl FnOnce(&mut Options)) -> (Fleet, String) {
    let schema = fresh_schema();
    let mut options = options(&ManualClock::at(START.parse().unwrap()));
    change(&mut options);
    (Fleet::open_with(&postgres_url(&schema), options).await.unwrap(), schema)
}

#[tokio::test]
async fn a_claim_and_a_completion_take_at_most_five_round_trips() {
    let (fleet, _) = with(|options| options.connections = 1).await;
    let next = |run: &str| task::Claim::next("auth", run);
    let mine = task::Claim { agent: Some("codex".into()), ..next("mine") };
    let kinds = [
        ("a new run", next("new")),
        ("the same run again", next("new")),
        ("for an agent, from the pool", mine.clone()),
        ("for an agent, its own", mine),
        ("with a request id", task::Claim { request: Some("ask".into()), ..next("asks") }),
        ("with a tag", task::Claim { tag: Some("rust".into()), ..next("tags") }),
    ];
    // The first round prepares every statement on the connection.
    for round in ["first", "second"] {
        let mut cost = Vec::new();
        let before = |what: &str| (what.to_owned(), fleet.stats().round_trips);
        for (what, claim) in &kinds {
            let to = (*what == "for an agent, its own").then(|| "codex".to_owned());
            let tags = vec!["rust".to_owned()];
            let first =
                fleet.call(task::Add { to, tags, ..task::Add::new("auth", "first") }).await.unwrap().task.id;
            fleet
                .call(task::Add {
                    after: vec![first],
                    tags: vec!["rust".into()],
                    ..task::Add::new("later", "second")
                })
                .await
                .unwrap();
            let request = claim.request.as_ref().map(|request| format!("{request}-{round}"));
            let claim = task::Claim { request, run: format!("{}-{round}", claim.run), ..claim.clone() };
            cost.push(before(&format!("claim, {what}")));
            let token = fleet.call(claim).await.unwrap().claim.token;
            cost.push(before("done, with an output and a dependent"));
            fleet.call(task::Done { token, output: Some("built".into()) }).await.unwrap();
            cost.push(before(""));
        }
        if round == "second" {
            for pair in cost.windows(2).filter(|pair| !pair[0].0.is_empty()) {
                let trips = pair[1].1 - pair[0].1;
                println!("{trips} round trips: {}", pair[0].0);
                assert!((3..=5).contains(&trips), "{}: {trips}", pair[0].0);
            }
        }
    }
}

on_both! {
    /// The opening reads send the request's text to the database before the op has checked it.
    async fn values_that_the_database_cannot_hold_are_refused_by_field(world: World) {
        world.add("first").await;
        let claims = [
            task::Claim::next("auth", "a\0b"),
            task::Claim { request: Some("a\0b".into()), ..task::Claim::next("auth", "r1") },
        ];
        for (claim, field) in claims.into_iter().zip(["run", "request"]) {
            let error = refused(world.fleet.call(claim).await);
            assert_eq!((error.code(), error.field("field")), (Code::Invalid, Some(&field.into())), "{error:?}");
        }
        let ends = run::End { run: "a\0b".into(), ..run::End::default() };
        assert_eq!(code(world.fleet.call(ends).await), Code::Invalid);
    }
}

#[tokio::test]
async fn a_batch_of_statements_is_answered_in_order() {
    let (fleet, _) = with(|_| {}).await;
    let ask = fleet.transaction(|tx| {
        Box::pin(async move {
            let next = "select nextval('many')";
            tx.execute("create sequence many", params![]).await?;
            let answers = tx.send((0..100).map(|_| Stmt::write(next, params![])).collect()).await?;
            answers.into_rows().map(|row| row.get::<i64>("nextval")).collect::<Result<Vec<_>>>()
        })
    });
    assert_eq!(ask.await.unwrap(), (1..=100).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_deadlock_is_retried_and_both_succeed() {
    let (fleet, schema) = with(|_| {}).await;
    let raw = connect(&schema).await;
    raw.batch_execute("create table t(id bigint, n bigint); insert into t values (1, 0), (2, 0)")
        .await
        .unwrap();
    let (barrier, tries) = (Arc::new(Barrier::new(2)), Arc::new(AtomicU32::new(0)));
    let both = |first: i64, second: i64| {
        let (barrier, tries) = (barrier.clone(), tries.clone());
        fleet.transaction(move |tx| {
            let (barrier, tries) = (barrier.clone(), tries.clone());
            Box::pin(async move {
                tx.execute("update t set n = n + 1 where id = ?1", params![first]).await?;
                // Each has locked its first row before either asks for its second.
                if tries.fetch_add(1, Ordering::SeqCst) < 2 {
                    barrier.wait().await;
                }
                tx.execute("update t set n = n + 1 where id = ?1", params![second]).await
            })
        })
    };
    let (one, other) = tokio::join!(both(1, 2), both(2, 1));
    assert_eq!((one.unwrap(), other.unwrap()), (1, 1));
    // One of them is retried. It may lock its first row again before the other gets its second: then they deadlock again.
    assert!(tries.load(Ordering::SeqCst) >= 3, "they did not meet");
    assert_eq!(count(&raw, "select sum(n)::bigint from t").await, 4);
}

#[tokio::test]
async fn retries_of_serialization_failures_are_bounded() {
    let (fleet, schema) = with(|_| {}).await;
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    let never = fleet.transaction(move |tx| {
        counted.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            tx.call(task::Add::new("auth", "never")).await?;
            tx.execute("do $$ begin raise exception 'no' using errcode = '40001'; end $$", params![]).await
        })
    });
    let error = refused(never.await);
    assert_eq!((error.code(), tries.load(Ordering::SeqCst)), (Code::Unavailable, 10));
    assert!(error.hint_text().is_some(), "{error:?}");
    assert_eq!(count(&connect(&schema).await, "select count(*) from task").await, 0);
}

#[tokio::test]
async fn a_statement_that_failed_unnoticed_is_not_a_success() {
    let (fleet, schema) = with(|_| {}).await;
    let swallowed = fleet.transaction(|tx| {
        Box::pin(async move {
            tx.call(task::Add::new("auth", "lost")).await?;
            let _ = tx.execute("insert into nowhere values (1)", params![]).await;
            Ok(())
        })
    });
    let error = refused(swallowed.await);
    assert_eq!(error.code(), Code::Internal, "{error:?}");
    let raw = connect(&schema).await;
    assert_eq!(count(&raw, "select count(*) from task").await, 0);

    let undone = fleet.transaction(|tx| {
        Box::pin(async move {
            tx.call(task::Add::new("auth", "kept")).await?;
            tx.execute("savepoint mine", params![]).await?;
            let _ = tx.execute("insert into nowhere values (1)", params![]).await;
            tx.execute("rollback to savepoint mine", params![]).await
        })
    });
    undone.await.expect("what failed was undone");
    assert_eq!(count(&raw, "select count(*) from task").await, 1);
}

/// Waits until a call of this fleet waits for a lock.
async fn blocked(raw: &tokio_postgres::Client, schema: &str) {
    let waiting = format!(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and pid in (
           select pid from pg_locks join pg_class on pg_class.oid = pg_locks.relation
           where relnamespace = '{schema}'::regnamespace)"
    );
    eventually("somebody waits for the lock", async || count(raw, &waiting).await > 0).await;
}

#[tokio::test]
async fn a_caller_that_hangs_up_leaves_no_open_transaction() {
    let (fleet, schema) = with(|options| options.connections = 1).await;
    let (holder, watcher) = (connect(&schema).await, connect(&schema).await);
    fleet.call(task::Add::new("auth", "first")).await.unwrap();
    let token = fleet.call(task::Claim::next("auth", "r1")).await.unwrap().claim.token;
    holder.batch_execute("begin; select * from task for update").await.unwrap();
    let hangs_up = tokio::spawn({
        let (fleet, done) = (fleet.clone(), task::Done::new(&token));
        async move { fleet.call(done).await.map(drop) }
    });
    blocked(&watcher, &schema).await;
    hangs_up.abort();
    assert!(hangs_up.await.unwrap_err().is_cancelled());
    // The pool's only connection is free again at once, and it is a new one.
    fleet.call(task::Add::new("auth", "second")).await.unwrap();
    holder.batch_execute("commit").await.unwrap();
    assert_eq!(
        fleet.call(task::Show { task: "auth-1".into() }).await.unwrap().task.status,
        task::Status::InProgress
    );
    fleet.call(task::Done::new(&token)).await.unwrap();
    let open = "select count(*) from pg_locks join pg_class on pg_class.oid = pg_locks.relation
                where relnamespace = current_schema()::regnamespace";
    // The server may need a moment to notice.
    eventually("no transaction is open", async || count(&watcher, open).await == 0).await;
}

#[tokio::test]
async fn a_call_gives_up_after_its_limit() {
    let (patient, schema) = with(|_| {}).await;
    patient.call(task::Add::new("auth", "first")).await.unwrap();
    let mut hasty = options(&ManualClock::at(START.parse().unwrap()));
    hasty.connections = 1;
    hasty.call_limit = Duration::from_millis(300);
    // Connecting may take longer than that.
    let mut fleet = None;
    eventually("it is connected", async || {
        match Fleet::open_with(&postgres_url(&schema), hasty.clone()).await {
            Ok(opened) => fleet = Some(opened),
            Err(error) => assert_eq!(error.code(), Code::Unavailable, "{error:?}"),
        }
        fleet.is_some()
    })
    .await;
    let fleet = fleet.unwrap();
    let holder = connect(&schema).await;
    holder.batch_execute("begin; lock table task").await.unwrap();
    let show = || fleet.call(task::Show { task: "auth-1".into() });
    let answers = tokio::time::timeout(PATIENCE, async { tokio::join!(show(), show()) });
    let (waits_for_the_lock, waits_for_the_pool) = answers.await.expect("a call hangs");
    for refusal in [refused(waits_for_the_lock), refused(waits_for_the_pool)] {
        assert_eq!(refusal.code(), Code::Unavailable, "{refusal:?}");
        assert!(refusal.hint_text().is_some(), "{refusal:?}");
    }
    holder.batch_execute("commit").await.unwrap();
    eventually("the pool is well again", async || match show().await {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.code(), Code::Unavailable, "{error:?}");
            false
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_callers_than_connections_just_wait() {
    let (fleet, schema) = with(|options| options.connections = 2).await;
    let adding = (0..50).map(|n| fleet.call(task::Add::new("auth", format!("task {n}"))));
    let added = join_all(adding).await.into_iter().map(|added| added.unwrap().task.id);
    assert_eq!(added.collect::<std::collections::BTreeSet<_>>().len(), 50);
    assert_eq!(count(&connect(&schema).await, "select count(*) from task").await, 50);
}

#[tokio::test]
async fn two_schemas_are_two_fleets() {
    let (one, other) = (World::postgres().await, World::postgres().await);
    assert_eq!((one.add("mine").await, other.add("yours").await), ("auth-1".into(), "auth-1".into()));
    assert_eq!(
        (one.show("auth-1").await.title, other.show("auth-1").await.title),
        ("mine".into(), "yours".into())
    );
    one.claim("auth-1", "r1").await.unwrap();
    assert_eq!(other.claim("auth-1", "r1").await.unwrap(), "task/auth-1@1");
    one.end("r1").await;
    assert_eq!(other.fleet.call(run::List::default()).await.unwrap().runs[0].name, "r1");
    assert_eq!(other.guard("task/auth-1@1").await, fencepost::claim::Verdict::Ok);
}

#[tokio::test]
async fn a_panicking_closure_leaves_the_pool_as_it_was() {
    let (fleet, _) = with(|options| options.connections = 1).await;
    for _ in 0..3 {
        let panics = tokio::spawn({
            let fleet = fleet.clone();
            async move {
                let panics = fleet.transaction(|tx| {
                    Box::pin(async move {
                        tx.call(task::Add::new("auth", "never")).await?;
                        if tx.now > Time(0) {
                            panic!("boom");
                        }
                        Ok::<_, Error>(())
                    })
                });
                panics.await
            }
        });
        assert!(panics.await.unwrap_err().is_panic());
    }
    let added: Result<_> = fleet.call(task::Add::new("auth", "first")).await;
    assert_eq!(added.unwrap().task.id, "auth-1");
    assert_eq!(code(fleet.call(task::Show { task: "auth-2".into() }).await), Code::NotFound);
}

/// One more round trip per call costs a fleet of a thousand agents a tenth of its throughput.
#[tokio::test]
async fn round_trips_per_call() {
    // The clock stands still: once a second, a call stores the time with one round trip more.
    let (fleet, _) = with(|_| {}).await;
    let mut counted = BTreeMap::new();
    macro_rules! count {
        ($name:literal, $call:expr) => {{
            let before = fleet.stats().round_trips;
            let reply = fleet.call($call).await.unwrap();
            counted.insert($name, fleet.stats().round_trips - before);
            reply
        }};
    }
    fleet.call(agent::Join { agent: "ada".into(), ..Default::default() }).await.unwrap();
    let poll = |run: &str| agent::Poll { agent: "ada".into(), run: run.into(), ..Default::default() };
    let settle =
        |run: &str| run::Settle { run: run.into(), output: Some("built".into()), ..Default::default() };
    let letter = || inbox::Send { agent: "ada".into(), text: "hello".into(), ..Default::default() };
    // The boards and mailboxes exist already.
    fleet.call(task::Add::new("auth", "first")).await.unwrap();
    fleet.call(letter()).await.unwrap();
    fleet.call(poll("p0")).await.unwrap();
    fleet.call(settle("p0")).await.unwrap();

    let token = count!("task/claim", task::Claim::next("auth", "r1")).claim.token;
    count!("task/done", task::Done::new(token));
    count!("agent/poll: nothing", poll("p1"));
    count!("task/add", task::Add::new("auth", "second"));
    assert!(count!("agent/poll: a task", poll("p1")).trigger.is_some());
    count!("run/settle: a task", settle("p1"));
    count!("inbox/send", letter());
    assert!(count!("agent/poll: a message", poll("p2")).trigger.is_some());
    count!("run/settle: a message", settle("p2"));
    let counted: Vec<_> = counted.iter().map(|(name, count)| format!("{name} {count}")).collect();
    insta::assert_snapshot!(counted.join("\n"), @r"
    agent/poll: a message 5
    agent/poll: a task 5
    agent/poll: nothing 2
    inbox/send 5
    run/settle: a message 5
    run/settle: a task 5
    task/add 4
    task/claim 4
    task/done 4
    ");
}

/// Concurrent adds reserve their numbers outside their transactions. Imports choose numbers, and an embedder's transaction
/// locks the counter for long. No number is given twice, and no call is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_numbers_are_given_once() {
    let schema = fresh_schema();
    let fleet = Fleet::open_with(&postgres_url(&schema), patient()).await.unwrap();
    fleet.call(task::Add::new("auth", "the first")).await.unwrap();
    let (holds, go) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let embedder = tokio::spawn({
        let (fleet, holds, go) = (fleet.clone(), holds.clone(), go.clone());
        async move {
            let held = fleet.transaction(move |tx| {
                let (holds, go) = (holds.clone(), go.clone());
                Box::pin(async move {
                    tx.call(task::Add::new("auth", "embedded")).await?;
                    holds.wait().await;
                    go.wait().await;
                    Ok(())
                })
            });
            held.await.unwrap();
        }
    });
    holds.wait().await;
    let adders: Vec<_> = (0..8)
        .map(|adder| {
            let fleet = fleet.clone();
            tokio::spawn(async move {
                let mut ids = Vec::new();
                for n in 0..15 {
                    let added = fleet.call(task::Add::new("auth", format!("{adder} {n}"))).await.unwrap();
                    ids.push(added.task.id);
                }
                ids
            })
        })
        .collect();
    // Long enough for some to stop reserving, and to wait for the counter in their own transaction.
    tokio::time::sleep(Duration::from_millis(400)).await;
    go.wait().await;
    embedder.await.unwrap();
    let mut imported = 0;
    for n in (20..120).step_by(5) {
        let item =
            task::import::Item { id: format!("auth-{n}"), title: "imported".into(), ..Default::default() };
        match fleet.call(task::Import { tasks: vec![item], ..Default::default() }).await {
            Ok(_) => imported += 1,
            Err(error) => assert_eq!(error.code(), Code::Invalid, "that number is another's: {error:?}"),
        }
    }
    let mut ids = std::collections::BTreeSet::new();
    for adder in adders {
        for id in adder.await.unwrap() {
            assert!(ids.insert(id.clone()), "{id} twice");
        }
    }
    let count = raw_count(&schema, "select count(*) from task").await;
    assert_eq!((ids.len(), count), (120, 120 + 2 + imported));
    let apart = "select count(*) from pg_stat_activity where application_name = left('fence_numbers ' || current_schema, 63)";
    // If the first attempts to connect took too long, there are none for some seconds.
    eventually("numbers are taken apart", async || {
        let add = || fleet.call(task::Add::new("auth", "one more"));
        let (one, other) = tokio::join!(add(), add());
        assert_ne!(one.unwrap().task.id, other.unwrap().task.id);
        raw_count(&schema, apart).await > 0
    })
    .await;
    assert!(fleet.call(fencepost::admin::Check {}).await.unwrap().ok);
}
