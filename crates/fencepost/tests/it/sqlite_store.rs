//! SQLite: group commit, separate readers, and other programs on the same file.

use fencepost::{
    Access, BoxFuture, Code, Durability, Fleet, Millis, Op, Options, Result, Time, Tx, claim, lock,
    op::OnRetry, params, run, task,
};
use fencepost_testing::{
    PATIENCE, World, eventually,
    world::{START, options, refused},
};
use futures_util::future::join_all;
use rusqlite::Connection;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

/// Another program with an open write transaction.
struct Held(Connection);

impl Held {
    fn hold(world: &World) -> Self {
        let conn = Connection::open(&world.url).unwrap();
        conn.execute_batch("begin immediate").unwrap();
        Self(conn)
    }
    fn let_go(self) {
        self.0.execute_batch("rollback").unwrap();
    }
}

/// Polls the calls once, so that each is in the writer's queue.
async fn queued<F: Future + ?Sized>(mut calls: Pin<&mut F>) {
    tokio::select! {
        biased;
        _ = &mut calls => panic!("answered while the writer was held back"),
        () = async {} => {}
    }
}

/// Waits until the writer waits for the file's lock.
async fn waiting(world: &World) {
    let turn = std::fs::File::open(format!("{}-turn", world.url)).unwrap();
    while turn.try_lock().is_ok() {
        turn.unlock().unwrap();
        tokio::task::yield_now().await;
    }
}

fn add(fleet: &Fleet, title: &str) -> BoxFuture<'static, Result<String>> {
    let (fleet, add) = (fleet.clone(), task::Add::new("auth", title));
    Box::pin(async move { Ok(fleet.call(add).await?.task.id) })
}

async fn with(change: impl FnOnce(&mut Options)) -> (World, Fleet) {
    let world = World::sqlite().await;
    let mut options = options(&world.clock);
    change(&mut options);
    let fleet = Fleet::open_with(&world.url, options).await.unwrap();
    (world, fleet)
}

async fn titles(fleet: &Fleet) -> Vec<String> {
    let tasks = fleet.call(task::List { limit: Some(1000), ..Default::default() }).await.unwrap().tasks;
    tasks.into_iter().map(|task| task.title).collect()
}

#[tokio::test]
async fn a_refused_op_changes_nothing_and_fails_no_other_of_its_batch() {
    let world = World::sqlite().await;
    let fleet = world.fleet.clone();
    world.add("first").await;
    let refused_after_writing = fleet.transaction(|tx| {
        Box::pin(async move {
            tx.call(task::Add::new("auth", "never")).await?;
            tx.execute("update fleet set floor = 1000", params![]).await?;
            Err::<String, _>(fencepost::Error::new(Code::Invalid, "on second thoughts"))
        })
    });
    let panics_at_once = fleet.transaction(|_| -> BoxFuture<'_, Result<String>> { panic!("boom") });
    let panics_after_writing = fleet.transaction(|tx| {
        Box::pin(async move {
            tx.call(task::Add::new("auth", "never")).await?;
            panic!("boom")
        })
    });
    let held = Held::hold(&world);
    let before = fleet.stats();
    let calls: Vec<BoxFuture<'_, Result<String>>> = vec![
        add(&fleet, "second"),
        Box::pin(refused_after_writing),
        Box::pin(world.claim_next("r1")),
        Box::pin(panics_at_once),
        Box::pin(async { Ok(world.done("task/auth-1@7").await?.id) }),
        Box::pin(panics_after_writing),
        add(&fleet, "third"),
    ];
    let mut calls = Box::pin(join_all(calls));
    queued(calls.as_mut()).await;
    held.let_go();
    let answers = calls.await.into_iter().map(|answer| answer.map_err(|e| e.code())).collect::<Vec<_>>();
    assert_eq!(
        answers,
        [
            Ok("auth-2".to_owned()),
            Err(Code::Invalid),
            Ok("task/auth-1@1".to_owned()),
            Err(Code::Internal),
            Err(Code::NotFound),
            Err(Code::Internal),
            Ok("auth-3".to_owned()),
        ]
    );
    let after = fleet.stats();
    assert_eq!((after.batches - before.batches, after.batched - before.batched), (1, 7), "one batch");
    assert_eq!(titles(&world.again().await).await, ["first", "second", "third"]);
    assert_eq!(world.kinds().await, ["task.added", "task.added", "task.claimed", "task.added"]);
    world.assert_sound().await;
}

#[tokio::test]
async fn an_op_that_cannot_be_undone_alone_rolls_back_its_batch() {
    let world = World::sqlite().await;
    let meddles = world.fleet.transaction(|tx| {
        Box::pin(async move {
            tx.execute("update fleet set floor = 1000", params![]).await?;
            tx.execute("release savepoint op", params![]).await?;
            Err::<String, _>(fencepost::Error::new(Code::Invalid, "on second thoughts"))
        })
    });
    let held = Held::hold(&world);
    let calls: Vec<BoxFuture<'_, Result<String>>> = vec![add(&world.fleet, "before"), Box::pin(meddles)];
    let mut calls = Box::pin(join_all(calls));
    queued(calls.as_mut()).await;
    held.let_go();
    assert!(calls.await.iter().all(Result::is_err));
    assert_eq!(titles(&world.fleet).await, [""; 0]);
    let id = world.add("after").await;
    assert_eq!(world.claim(&id, "r1").await.unwrap(), "task/auth-1@1");
}

#[tokio::test]
async fn sixty_four_callers_share_one_commit() {
    let world = World::sqlite().await;
    let held = Held::hold(&world);
    let before = world.fleet.stats();
    let mut calls = Box::pin(join_all((0..64).map(|n| add(&world.fleet, &format!("task {n}")))));
    queued(calls.as_mut()).await;
    held.let_go();
    let ids: Vec<_> = calls.await.into_iter().map(Result::unwrap).collect();
    assert_eq!(ids, (1..=64).map(|n| format!("auth-{n}")).collect::<Vec<_>>());
    let after = world.fleet.stats();
    assert_eq!((after.batches - before.batches, after.batched - before.batched), (1, 64));
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reply_before_the_commit() {
    let world = World::sqlite().await;
    let other = Connection::open(&world.url).unwrap();
    let mut stored = other.prepare("select count(*) from task").unwrap();
    for n in 1..=200_i64 {
        world.add("one more").await;
        assert_eq!(stored.query_row([], |row| row.get::<_, i64>(0)).unwrap(), n);
    }
}

#[tokio::test]
async fn readers_see_the_last_commit_and_never_wait_for_the_writer() {
    let world = World::sqlite().await;
    let id = world.add("first").await;
    let held = Held::hold(&world);
    held.0.execute("update task set title = 'being written'", []).unwrap();
    // The lock is held all the time: a reader that waited for it would be refused.
    let read = tokio::time::timeout(PATIENCE, world.show(&id));
    assert_eq!(read.await.expect("a read waited for the writer").title, "first");
    held.0.execute_batch("commit").unwrap();
    assert_eq!(world.show(&id).await.title, "being written");
}

#[tokio::test]
async fn every_commit_is_synced_unless_asked_otherwise() {
    async fn setting(fleet: &Fleet, pragma: &'static str, column: &'static str) -> String {
        fleet
            .transaction(move |tx| {
                Box::pin(async move {
                    let row = tx.query(pragma, params![]).await?.remove(0);
                    row.get::<String>(column).or_else(|_| Ok(row.get::<i64>(column)?.to_string()))
                })
            })
            .await
            .unwrap()
    }
    let world = World::sqlite().await;
    assert_eq!(Options::default().durability, Durability::Full);
    assert_eq!(setting(&world.fleet, "pragma synchronous", "synchronous").await, "2");
    assert_eq!(setting(&world.fleet, "pragma journal_mode", "journal_mode").await, "wal");
    let (_world, normal) = with(|options| options.durability = Durability::Normal).await;
    assert_eq!(setting(&normal, "pragma synchronous", "synchronous").await, "1");
}

#[tokio::test]
async fn now_is_read_once_the_lock_is_held() {
    let world = World::sqlite().await;
    let id = world.add("first").await;
    let held = Held::hold(&world);
    let mut claim = Box::pin(world.fleet.call(task::Claim::of(&id, "r1")));
    queued(claim.as_mut()).await;
    waiting(&world).await;
    world.pass(60);
    held.let_go();
    let started: Time = START.parse().unwrap();
    assert_eq!(claim.await.unwrap().claim.claimed_at, Time(started.0 + 60_000));
}

#[tokio::test]
async fn a_call_that_gives_up_on_the_lock_does_nothing() {
    let (world, fleet) = with(|options| options.call_limit = Duration::from_millis(50)).await;
    let held = Held::hold(&world);
    let error = refused(add(&fleet, "given up").await);
    assert_eq!(error.code(), Code::Unavailable);
    insta::assert_snapshot!(error.message(), @"the database was busy for 50ms: another process is holding it");
    insta::assert_snapshot!(error.hint_text().unwrap(), @"nothing was changed; find the process that holds the file, or try again");
    let mut hangs_up = add(&world.fleet, "hung up");
    queued(hangs_up.as_mut()).await;
    drop(hangs_up);
    held.let_go();
    // Each goes through the same queue as the call before.
    add(&world.fleet, "stays").await.unwrap();
    fleet.call(run::Renew { run: "r1".into(), ttl_ms: None }).await.unwrap_err();
    assert_eq!(titles(&world.fleet).await, ["stays"]);
    world.assert_sound().await;
}

/// A read that counts rows, and takes as long as the test wants.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Count {
    to: i64,
}

impl Op for Count {
    const NAME: &'static str = "test/count";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &str = "{}";
    const READS: bool = true;
    type Reply = i64;
    async fn run(self, tx: &mut Tx<'_>) -> Result<i64> {
        let sql = "with recursive c(n) as (select 1 union all select n + 1 from c where n < ?1)
                   select count(*) + 0 * (select count(*) from task) as n from c";
        tx.query(sql, params![self.to]).await?[0].get("n")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_overlap_for_ever_do_not_grow_the_log() {
    const LIMIT: u64 = 512 * 1024;
    let (world, fleet) = with(|options| options.wal_limit = LIMIT).await;
    let reading = (0..3).map(|_| {
        let fleet = fleet.clone();
        tokio::spawn(async move {
            loop {
                fleet.call(Count { to: 20_000 }).await.unwrap();
            }
        })
    });
    let reading: Vec<_> = reading.collect();
    let mut longest = 0;
    for n in 0..120 {
        let body = Some("x".repeat(60_000));
        fleet.call(task::Add { body, ..task::Add::new("auth", format!("task {n}")) }).await.unwrap();
        longest = longest.max(std::fs::metadata(format!("{}-wal", world.url)).unwrap().len());
    }
    assert!(reading.iter().all(|reader| !reader.is_finished()), "the reads failed");
    reading.iter().for_each(|reader| reader.abort());
    assert!((LIMIT..4 * LIMIT).contains(&longest), "7 MB were written; the log had {longest} bytes");
}

#[tokio::test]
async fn another_programs_long_read_does_not_stop_the_writer() {
    const LIMIT: u64 = 64 * 1024;
    let (world, fleet) = with(|options| {
        options.wal_limit = LIMIT;
        options.read_limit = Duration::from_millis(50);
        // So that a slow disk is not mistaken for the reader.
        options.durability = Durability::Normal;
    })
    .await;
    let log = || std::fs::metadata(format!("{}-wal", world.url)).unwrap().len();
    let write = async |rounds: usize| {
        for _ in 0..rounds {
            let body = Some("x".repeat(15_000));
            fleet.call(task::Add { body, ..task::Add::new("auth", "one more") }).await.unwrap();
        }
    };
    let reader = Connection::open(&world.url).unwrap();
    reader.execute_batch("begin; select * from fleet").unwrap();
    // SQLite would wait 10 s for the reader after each batch, or each time that the WAL has grown: longer than this.
    tokio::time::timeout(PATIENCE, write(40)).await.expect("every batch waits for the reader");
    assert!(log() > 4 * LIMIT, "the reader held nothing back");
    reader.execute_batch("commit").unwrap();
    write(10).await;
    assert!(log() < 4 * LIMIT, "the log never started anew: {}", log());
}

#[tokio::test]
async fn a_read_that_takes_too_long_is_cut_off() {
    let (_world, fleet) = with(|options| {
        options.read_limit = Duration::from_millis(20);
        options.readers = 1;
    })
    .await;
    let error = refused(fleet.call(Count { to: i64::MAX }).await);
    assert_eq!(error.code(), Code::Unavailable);
    insta::assert_snapshot!(error.message(), @"the read took longer than the time allowed for it");
    assert_eq!(fleet.call(Count { to: 10 }).await.unwrap(), 10, "the next one is not");
}

static READING: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// A read that counts as open while it runs.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Counted {
    to: i64,
}

impl Op for Counted {
    const NAME: &'static str = "test/counted";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &str = "{}";
    const READS: bool = true;
    type Reply = i64;
    async fn run(self, tx: &mut Tx<'_>) -> Result<i64> {
        MOST.fetch_max(READING.fetch_add(1, SeqCst) + 1, SeqCst);
        let counted = Count { to: self.to }.run(tx).await;
        READING.fetch_sub(1, SeqCst);
        counted
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_hung_up_counts_until_it_is_over() {
    let (_world, fleet) = with(|options| {
        options.read_limit = Duration::from_millis(300);
        options.readers = 1;
    })
    .await;
    let mut hangs_up = Box::pin(fleet.call(Counted { to: i64::MAX }));
    queued(hangs_up.as_mut()).await;
    // (It may have ended by now.)
    while MOST.load(SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    drop(hangs_up);
    assert_eq!(fleet.call(Counted { to: 10 }).await.unwrap(), 10);
    assert_eq!(MOST.load(SeqCst), 1);
}

/// A stopped process keeps its file locks, also while it waits for its turn or has no transaction yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_stopped_while_it_waits_for_the_lock_stops_nobody() {
    let world = World::sqlite().await;
    for door in ["queue", "turn"] {
        let file = std::fs::File::options().append(true).open(format!("{}-{door}", world.url)).unwrap();
        file.lock().unwrap();
        let token = tokio::time::timeout(PATIENCE, async {
            world.add("work").await;
            let other = world.again().await;
            other.call(task::Claim::next("auth", "a")).await.unwrap().claim.token
        });
        world.done(&token.await.expect("it is passed by")).await.unwrap();
        file.unlock().unwrap();
    }
}

#[tokio::test]
async fn waiting_processes_take_turns_at_the_lock() {
    let world = World::sqlite().await;
    let other = world.again().await;
    let wanted =
        |run: &str| lock::Claim { wait_ms: Some(Millis::minutes(10)), ..lock::Claim::new("deploy", run) };
    // Some call here always waits for the lock, as with three clients of a busy server.
    let granted = AtomicUsize::new(0);
    let granted_by_then = AtomicUsize::new(0);
    let busy = async |run: &str| {
        loop {
            let claim = world.fleet.call(wanted(run)).await.unwrap().claim;
            tokio::time::sleep(Duration::from_millis(20)).await;
            world.fleet.call(claim::Release::new(&claim.token)).await.unwrap();
            let more = granted.fetch_add(1, SeqCst) - granted_by_then.load(SeqCst);
            assert!(more < 50 + 3, "another process waits, and was not granted it in {more} times");
        }
    };
    let patient = async {
        eventually("the others are at it", async || granted.load(SeqCst) > 3).await;
        for turn in 0..10 {
            granted_by_then.store(granted.load(SeqCst), SeqCst);
            let claim = other.call(wanted(&format!("other-{turn}"))).await.unwrap().claim;
            other.call(claim::Release::new(&claim.token)).await.unwrap();
        }
    };
    tokio::select! {
        () = patient => {}
        _ = join_all([busy("a"), busy("b"), busy("c")]) => {}
    }
}

/// A database file may come with a repository, or as another person's backup.
#[tokio::test]
async fn a_foreign_schema_is_not_trusted() {
    let world = World::sqlite().await;
    let stranger = Connection::open(&world.url).unwrap();
    stranger.execute_batch("create table leaked(file); create trigger planted after insert on event begin insert into leaked select file from pragma_database_list; end").unwrap();
    let added = world.fleet.call(task::Add::new("auth", "work")).await;
    assert!(added.is_err_and(|e| e.message().contains("unsafe use of virtual table")));
    stranger.execute_batch("drop trigger planted").unwrap();
    world.add("work").await;
    let harm = world.fleet.transaction(|tx| {
        Box::pin(async move {
            tx.query("pragma writable_schema=on", params![]).await?;
            tx.execute("update sqlite_master set sql = null where name = 'task'", params![]).await
        })
    });
    assert!(harm.await.is_err_and(|e| e.message().contains("sqlite_master may not be modified")));
    let leaked: i64 = stranger.query_row("select count(*) from leaked", [], |row| row.get(0)).unwrap();
    assert_eq!(leaked, 0);
}
