//! Waiting calls: what wakes them, and what does not.

use crate::open_transactions::hold;
use fencepost::{
    Code, Counts, Error, Fleet, Millis, Op, Options, Result, claim, event, lock, params, run,
    task::{self, Status},
};
use fencepost_testing::{
    PATIENCE, World, eventually, on_both,
    world::{code, options, refused},
};
use std::time::Duration;
use tokio::{task::JoinHandle, time::Instant};

/// Time enough for a thousand calls on a busy machine.
const LONG: Duration = Duration::from_secs(300);

pub fn next(run: &str, seconds: i64) -> task::Claim {
    task::Claim { wait_ms: Some(Millis::seconds(seconds)), ..task::Claim::next("auth", run) }
}

fn of(task: &str, run: &str, seconds: i64) -> task::Claim {
    task::Claim { wait_ms: Some(Millis::seconds(seconds)), ..task::Claim::of(task, run) }
}

fn deploy(run: &str, seconds: i64) -> lock::Claim {
    lock::Claim { wait_ms: Some(Millis::seconds(seconds)), ..lock::Claim::new("deploy", run) }
}

pub fn waits<O: Op>(fleet: &Fleet, op: O) -> JoinHandle<Result<O::Reply>> {
    let fleet = fleet.clone();
    tokio::spawn(async move { fleet.call(op).await })
}

/// Waits until the fleet's counts are as wanted, for example until this many calls wait.
pub async fn until(fleet: &Fleet, what: &str, wanted: impl Fn(Counts) -> bool) {
    let end = Instant::now() + LONG;
    while !wanted(fleet.stats()) {
        assert!(Instant::now() < end, "not within {LONG:?}: {what}: {:?}", fleet.stats());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub async fn parked(fleet: &Fleet, count: u64) {
    until(fleet, &format!("{count} are waiting"), |counts| counts.waiting == count).await;
}

/// Waits for a whole second without a statement. It is real time, because nothing may happen in it. The watcher may still
/// query after the last commit, and on PostgreSQL it queries every three seconds in any case.
pub async fn nobody_asks(fleet: &Fleet) -> Counts {
    for _ in 0..LONG.as_secs() {
        let before = fleet.stats();
        tokio::time::sleep(Duration::from_secs(1)).await;
        if fleet.stats() == before {
            return before;
        }
    }
    panic!("in no second of {LONG:?} nobody asked: {:?}", fleet.stats());
}

/// The reply, which must come soon.
pub async fn answer<T>(waiter: JoinHandle<Result<T>>) -> Result<T> {
    tokio::time::timeout(PATIENCE, waiter).await.expect("an answer").expect("no panic")
}

/// The reply to a call that must not wait long.
async fn ask<O: Op>(fleet: &Fleet, op: O) -> Result<O::Reply> {
    answer(waits(fleet, op)).await
}

pub async fn token(waiter: JoinHandle<Result<task::claim::Claimed>>) -> String {
    answer(waiter).await.expect("a claim").claim.token
}

/// A board with one task, held by run `a`.
pub async fn one_is_held(world: &World) -> String {
    world.add("one").await;
    world.claim("auth-1", "a").await.unwrap()
}

on_both! {
    async fn a_claim_waits_for_work_of_the_same_process(world: World) {
        one_is_held(&world).await;
        let waiter = waits(&world.fleet, next("b", 60));
        parked(&world.fleet, 1).await;
        world.add("two").await;
        assert_eq!(token(waiter).await, "task/auth-2@1");
        assert_eq!(world.fleet.stats().waiting, 0);
    }

    async fn a_claim_waits_for_work_of_another_process(world: World) {
        one_is_held(&world).await;
        let waiter = waits(&world.fleet, next("b", 60));
        parked(&world.fleet, 1).await;
        world.again().await.call(task::Add::new("auth", "two")).await.unwrap();
        assert_eq!(token(waiter).await, "task/auth-2@1");
    }

    async fn an_embedders_transaction_wakes_too(world: World) {
        one_is_held(&world).await;
        let waiter = waits(&world.fleet, next("b", 60));
        parked(&world.fleet, 1).await;
        world.fleet
            .transaction(|tx| Box::pin(async move { tx.call(task::Add::new("auth", "two")).await }))
            .await
            .unwrap();
        assert_eq!(token(waiter).await, "task/auth-2@1");
    }

    async fn a_ready_task_is_claimed_without_waiting(world: World) {
        world.add("one").await;
        assert_eq!(ask(&world.fleet, next("b", 60)).await.unwrap().claim.token, "task/auth-1@1");
        let many = task::ClaimMany { count: 5, run: "c".into(), wait_ms: Some(Millis::seconds(60)), ..Default::default() };
        let waiter = waits(&world.fleet, many);
        parked(&world.fleet, 1).await;
        world.add("two").await;
        assert_eq!(answer(waiter).await.unwrap().claims.len(), 1);
    }

    async fn a_named_task_is_waited_for_until_it_is_free(world: World) {
        let held = one_is_held(&world).await;
        world.add_after("two", &["auth-1"]).await;
        world.story("
            add three        -> auth-3
            park auth-3 reason=later -> parked=later
        ").await;
        let blocked = waits(&world.fleet, of("auth-2", "b", 60));
        let aside = waits(&world.fleet, of("auth-3", "c", 60));
        parked(&world.fleet, 2).await;
        world.done(&held).await.unwrap();
        assert_eq!(token(blocked).await, "task/auth-2@1");
        parked(&world.fleet, 1).await;
        world.story("unpark auth-3 -> parked=none").await;
        assert_eq!(token(aside).await, "task/auth-3@1");
    }

    async fn the_end_of_a_delay_wakes(world: World) {
        let held = one_is_held(&world).await;
        let fail = task::Fail { retry: true, delay_ms: Some(Millis::seconds(10)), ..task::Fail::new(&held, "flaky") };
        world.fleet.call(fail).await.unwrap();
        let (named, any) = (waits(&world.fleet, of("auth-1", "b", 60)), waits(&world.fleet, next("c", 20)));
        parked(&world.fleet, 2).await;
        world.clock.advance(Duration::from_millis(9_999));
        world.clock.advance(Duration::from_millis(1));
        // One of them gets it; the other waits on, and is refused at the end.
        parked(&world.fleet, 1).await;
        world.pass(50);
        let mut answers = [answer(named).await, answer(any).await].map(|got| got.map(|got| got.claim.token));
        answers.sort_by_key(Result::is_err);
        assert_eq!(answers[0].as_ref().unwrap(), "task/auth-1@2");
        assert!(answers[1].is_err());
    }

    async fn the_end_of_a_lease_wakes(world: World) {
        one_is_held(&world).await;
        let waiter = waits(&world.fleet, of("auth-1", "b", 60));
        let other = world.again().await;
        let elsewhere = waits(&other, next("c", 60));
        parked(&world.fleet, 1).await;
        parked(&other, 1).await;
        world.pass(30);
        tokio::select! {
            got = answer(waiter) => assert_eq!(got.unwrap().claim.token, "task/auth-1@2"),
            got = answer(elsewhere) => assert_eq!(got.unwrap().claim.token, "task/auth-1@2"),
        }
    }

    async fn the_end_of_a_cap_wakes(world: World) {
        let capped = lock::Claim { max_ms: Some(Millis::seconds(5)), ..lock::Claim::new("deploy", "a") };
        world.fleet.call(capped).await.unwrap();
        let waiter = waits(&world.fleet, deploy("b", 60));
        parked(&world.fleet, 1).await;
        world.pass(5);
        assert_eq!(answer(waiter).await.unwrap().claim.token, "lock/deploy@2");
    }

    async fn a_released_lock_goes_to_its_waiter(world: World) {
        let held = world.fleet.call(lock::Claim::new("deploy", "a")).await.unwrap().claim.token;
        let waiter = waits(&world.fleet, deploy("b", 60));
        parked(&world.fleet, 1).await;
        world.again().await.call(claim::Release { token: held, note: None }).await.unwrap();
        assert_eq!(answer(waiter).await.unwrap().claim.token, "lock/deploy@2");
    }

    async fn an_ended_runs_task_goes_to_a_waiter(world: World) {
        one_is_held(&world).await;
        let waiter = waits(&world.fleet, next("b", 60));
        parked(&world.fleet, 1).await;
        world.end("a").await;
        assert_eq!(token(waiter).await, "task/auth-1@2");
    }

    async fn one_of_fifty_waiters_gets_the_task(world: World) {
        one_is_held(&world).await;
        let other = world.again().await;
        let fleets = [&world.fleet, &other];
        let waiters: Vec<_> =
            (0..50).map(|n| waits(fleets[n % 2], next(&format!("w{n}"), 25))).collect();
        parked(&world.fleet, 25).await;
        parked(&other, 25).await;
        world.add("two").await;
        eventually("49 are waiting", async || world.fleet.stats().waiting + other.stats().waiting == 49).await;
        world.pass(25);
        let mut tokens = Vec::new();
        for waiter in waiters {
            match answer(waiter).await {
                Ok(claimed) => tokens.push(claimed.claim.token),
                Err(error) => assert_eq!(error.code(), Code::NoneReady, "{error}"),
            }
        }
        assert_eq!(tokens, ["task/auth-2@1"]);
        assert_eq!(world.times("task.claimed").await, 2);
    }

    async fn at_the_end_of_the_wait_the_last_refusal_is_returned(world: World) {
        one_is_held(&world).await;
        let waiter = waits(&world.fleet, next("b", 20));
        parked(&world.fleet, 1).await;
        world.clock.advance(Duration::from_millis(19_999));
        world.add_after("two", &["auth-1"]).await;
        world.clock.advance(Duration::from_millis(1));
        let refusal = refused(answer(waiter).await);
        assert_eq!((refusal.code(), refusal.field("blocked")), (Code::NoneReady, Some(&1.into())));
        assert_eq!(code(ask(&world.fleet, next("b", 0)).await), Code::NoneReady, "no wait is one look");
    }

    async fn refusals_that_waiting_cannot_change_come_at_once(world: World) {
        let held = one_is_held(&world).await;
        let own = refused(ask(&world.fleet, of("auth-1", "a", 600)).await);
        assert_eq!((own.code(), own.field("own")), (Code::AlreadyClaimed, Some(&true.into())));
        ask(&world.fleet, deploy("a", 600)).await.unwrap();
        assert_eq!(code(ask(&world.fleet, deploy("a", 600)).await), Code::AlreadyClaimed);
        assert_eq!(code(ask(&world.fleet, of("auth-9", "b", 600)).await), Code::NotFound);
        world.done(&held).await.unwrap();
        assert_eq!(code(ask(&world.fleet, of("auth-1", "b", 600)).await), Code::AlreadyFinished);
        assert_eq!(code(ask(&world.fleet, next("b", 600)).await), Code::BoardFinished);
    }

    async fn a_wait_has_limits(world: World) {
        world.add("one").await;
        for wait in [-1, 600_001, i64::MAX, i64::MIN] {
            let wait_ms = Some(Millis(wait));
            let refusals: [Error; 5] = [
                refused(world.fleet.call(task::Claim { wait_ms, ..task::Claim::next("auth", "b") }).await),
                refused(world.fleet.call(task::ClaimMany { wait_ms, count: 1, run: "b".into(), ..Default::default() }).await),
                refused(world.fleet.call(lock::Claim { wait_ms, ..lock::Claim::new("deploy", "b") }).await),
                refused(world.fleet.call(event::List { wait_ms, ..Default::default() }).await),
                refused(world.fleet.call(task::Wait { wait_ms, ..task::Wait::board("auth") }).await),
            ];
            for refusal in refusals {
                assert_eq!((refusal.code(), refusal.field("field")), (Code::Invalid, Some(&"wait_ms".into())));
            }
        }
        let claimed = ask(&world.fleet, next("b", 600));
        assert_eq!(claimed.await.unwrap().claim.token, "task/auth-1@1");
    }

    async fn nothing_waits_inside_a_transaction(world: World) {
        world.add("one").await;
        let inside = |wait| world.fleet.transaction(move |tx| {
            Box::pin(async move { Ok(tx.call(next("b", wait)).await?.claim.token) })
        });
        let refusal = refused(inside(1).await);
        assert_eq!((refusal.code(), refusal.field("field")), (Code::Invalid, Some(&"wait_ms".into())));
        assert_eq!(inside(0).await.unwrap(), "task/auth-1@1");
    }

    async fn a_waiter_that_hangs_up_leaves_nothing_behind(world: World) {
        one_is_held(&world).await;
        let waiter = waits(&world.fleet, next("b", 600));
        parked(&world.fleet, 1).await;
        waiter.abort();
        assert!(waiter.await.unwrap_err().is_cancelled());
        assert_eq!(world.fleet.stats().waiting, 0);
        world.add("two").await;
        world.pass(600);
        assert_eq!(world.show("auth-2").await.status, Status::Unassigned);
        let runs = world.fleet.call(run::List::default()).await.unwrap().runs;
        assert!(runs.iter().all(|run| run.name == "a"), "{runs:?}");
        // The next call waits as usual.
        world.claim("auth-2", "a").await.unwrap();
        world.claim("auth-1", "a").await.unwrap();
        let waiter = waits(&world.fleet, next("c", 600));
        parked(&world.fleet, 1).await;
        world.add("three").await;
        assert_eq!(token(waiter).await, "task/auth-3@1");
    }

    /// The run's own lease ends while it waits. Its claims are lost, and the new claim belongs to a new run of that name.
    async fn a_run_that_waits_longer_than_its_lease_starts_again(world: World) {
        let held = one_is_held(&world).await;
        let theirs = world.fleet.call(lock::Claim::new("deploy", "b")).await.unwrap().claim.token;
        let waiter = waits(&world.fleet, deploy("a", 300));
        parked(&world.fleet, 1).await;
        world.pass(60);
        assert_eq!(world.guard(&held).await, claim::Verdict::LeaseExpired);
        world.fleet.call(claim::Release { token: theirs, note: None }).await.unwrap();
        let got = answer(waiter).await.unwrap().claim;
        assert_eq!(got.token, "lock/deploy@2");
        assert_eq!(world.guard(&got.token).await, claim::Verdict::Ok);
        assert_eq!(world.guard(&held).await, claim::Verdict::LeaseExpired);
        assert_eq!(world.claim("auth-1", "c").await.unwrap(), "task/auth-1@2");
    }

    /// The same request waits twice, as after a lost reply, and takes one task.
    async fn the_same_request_waiting_twice_takes_one(world: World) {
        one_is_held(&world).await;
        let claim = task::Claim { request: Some("q".into()), ..next("b", 60) };
        let other = world.again().await;
        let (one, again) = (waits(&world.fleet, claim.clone()), waits(&other, claim));
        parked(&world.fleet, 1).await;
        parked(&other, 1).await;
        world.add("two").await;
        world.add("three").await;
        assert_eq!(token(one).await, token(again).await);
        assert_eq!(world.times("task.claimed").await, 2);
    }

    /// `call_limit` limits the time of the database, not the wait.
    async fn a_wait_is_not_cut_short_by_the_limit_of_a_call(world: World) {
        // Longer than any other step here.
        const LIMIT: Duration = Duration::from_secs(10);
        one_is_held(&world).await;
        let mut options: Options = options(&world.clock);
        options.call_limit = LIMIT;
        let hasty = Fleet::open_with(&world.url, options).await.unwrap();
        let waiter = waits(&hasty, next("b", 60));
        parked(&hasty, 1).await;
        tokio::time::sleep(LIMIT + Duration::from_millis(500)).await;
        assert!(!waiter.is_finished(), "still there after the limit");
        world.add("two").await;
        assert_eq!(token(waiter).await, "task/auth-2@1");
    }

    async fn an_idle_wait_runs_no_statements(world: World) {
        one_is_held(&world).await;
        readable(&world).await;
        let position = world.fleet.call(event::List::default()).await.unwrap().position;
        let mut waiters: Vec<_> = (0..40).map(|n| waits(&world.fleet, next(&format!("w{n}"), 20)).abort_handle()).collect();
        let follow = event::List { since: Some(position), wait_ms: Some(Millis::seconds(20)), ..Default::default() };
        waiters.push(waits(&world.fleet, follow).abort_handle());
        let wait = task::Wait { wait_ms: Some(Millis::seconds(20)), ..task::Wait::board("auth") };
        waiters.push(waits(&world.fleet, wait).abort_handle());
        parked(&world.fleet, 42).await;
        nobody_asks(&world.fleet).await;
        waiters.iter().for_each(tokio::task::AbortHandle::abort);
        parked(&world.fleet, 0).await;
    }

    async fn a_follower_gets_the_events_of_another_process(world: World) {
        world.add("one").await;
        readable(&world).await;
        let position = world.fleet.call(event::List::default()).await.unwrap().position;
        let locks = event::List {
            since: Some(position),
            kind: Some("lock".into()),
            wait_ms: Some(Millis::seconds(60)),
            ..Default::default()
        };
        let waiter = waits(&world.fleet, locks.clone());
        parked(&world.fleet, 1).await;
        world.add("not a lock").await;
        world.again().await.call(lock::Claim::new("deploy", "a")).await.unwrap();
        let page = answer(waiter).await.unwrap();
        assert_eq!(page.events.iter().map(|e| e.kind.as_str()).collect::<Vec<_>>(), ["lock.claimed"]);
        // Nothing more comes: an empty page at the end of the wait.
        let waiter = waits(&world.fleet, event::List { since: Some(page.position.clone()), ..locks });
        parked(&world.fleet, 1).await;
        world.pass(60);
        let empty = answer(waiter).await.unwrap();
        assert_eq!((empty.events.len(), empty.position), (0, page.position));
    }

    async fn tasks_are_waited_for_until_all_are_completed(world: World) {
        let one = one_is_held(&world).await;
        world.add("two").await;
        let two = world.claim("auth-2", "b").await.unwrap();
        for wait in [task::Wait::of(["auth-2", "auth-1", "auth-2"]), task::Wait::board("auth")] {
            let now = world.fleet.call(wait).await.unwrap();
            assert_eq!((now.over, now.open, now.completed), (false, 2, 0));
        }
        let wait = |of: task::Wait| waits(&world.fleet, task::Wait { wait_ms: Some(Millis::seconds(60)), ..of });
        let (named, board) = (wait(task::Wait::of(["auth-2", "auth-1"])), wait(task::Wait::board("auth")));
        let any = wait(task::Wait { any: true, ..task::Wait::of(["auth-2", "auth-1"]) });
        let any_of_board = wait(task::Wait { any: true, ..task::Wait::board("auth") });
        parked(&world.fleet, 4).await;
        world.done(&two).await.unwrap();
        let any = answer(any).await.unwrap();
        assert_eq!((any.over, any.completed, any.open), (true, 1, 1));
        assert_eq!(states(&any), ["auth-2 completed", "auth-1 in_progress"]);
        assert!(answer(any_of_board).await.unwrap().over);
        parked(&world.fleet, 2).await;
        world.again().await.call(task::Done::new(&one)).await.unwrap();
        let named = answer(named).await.unwrap();
        assert_eq!((named.over, named.completed, named.open), (true, 2, 0));
        assert_eq!(states(&named), ["auth-2 completed", "auth-1 completed"]);
        let board = answer(board).await.unwrap();
        assert_eq!((board.over, board.completed, board.open, board.tasks.len()), (true, 2, 0, 0));
    }

    async fn a_failed_or_cancelled_task_ends_the_wait_for_the_others(world: World) {
        let one = one_is_held(&world).await;
        world.story("
            add two   -> auth-2
            add other board=misc -> misc-1
            add more board=misc  -> misc-2
        ").await;
        let wait = |of: task::Wait| waits(&world.fleet, task::Wait { wait_ms: Some(Millis::seconds(60)), ..of });
        let (named, board) = (wait(task::Wait::of(["auth-1", "auth-2"])), wait(task::Wait::board("auth")));
        let misc = wait(task::Wait::board("misc"));
        parked(&world.fleet, 3).await;
        world.fleet.call(task::Fail::new(&one, "broken")).await.unwrap();
        for waiter in [named, board] {
            let over = answer(waiter).await.unwrap();
            assert_eq!((over.over, over.failed, over.open), (true, 1, 1));
            assert_eq!(states(&over), ["auth-1 failed", "auth-2 unassigned"]);
        }
        parked(&world.fleet, 1).await;
        world.story("cancel misc-2 -> cancelled").await;
        let misc = answer(misc).await.unwrap();
        assert_eq!((misc.over, misc.cancelled, misc.open, misc.failed), (true, 1, 1, 0));
        assert_eq!(states(&misc), ["misc-2 cancelled", "misc-1 unassigned"]);
    }

    /// No claim runs expiry, so the waiting read itself must notice that the last attempt is lost.
    async fn a_last_attempt_that_is_lost_ends_the_wait(world: World) {
        world.story("
            add one               -> auth-1
            add two max_attempts=1 -> auth-2
            claim auth-1 run=a ttl_ms=10000 -> task/auth-1@1
            claim auth-2 run=b ttl_ms=20000 -> task/auth-2@1
        ").await;
        let wait = |of: task::Wait| waits(&world.fleet, task::Wait { wait_ms: Some(Millis::seconds(60)), ..of });
        let (named, board) = (wait(task::Wait::of(["auth-1", "auth-2"])), wait(task::Wait::board("auth")));
        parked(&world.fleet, 2).await;
        world.pass(10);
        let now = world.fleet.call(task::Wait::board("auth")).await.unwrap();
        assert_eq!((now.over, now.open), (false, 2), "the first has attempts left");
        world.pass(10);
        for waiter in [named, board] {
            let over = answer(waiter).await.unwrap();
            assert_eq!((over.over, over.failed, over.open), (true, 1, 1));
            assert!(states(&over).contains(&"auth-2 failed".to_owned()), "{over:?}");
        }
        assert_eq!(world.times("task.failed").await, 0, "it only reads");
        world.story("claim run=c -> task/auth-1@2").await;
        assert_eq!(world.show("auth-2").await.status, Status::Failed);
    }

    async fn an_unfinished_wait_reports_progress(world: World) {
        one_is_held(&world).await;
        world.add_after("two", &["auth-1"]).await;
        world.story("
            add three to=bob -> auth-3
            add four         -> auth-4
            add five offer=bob -> auth-5
        ").await;
        let wait = task::Wait { wait_ms: Some(Millis::seconds(5)), ..task::Wait::board("auth") };
        let waiter = waits(&world.fleet, wait);
        parked(&world.fleet, 1).await;
        world.pass(5);
        let so_far = answer(waiter).await.unwrap();
        assert_eq!((so_far.over, so_far.open, so_far.completed), (false, 5, 0));
        assert_eq!(states(&so_far), [
            "auth-1 in_progress", "auth-4 unassigned", "auth-3 pending", "auth-2 unassigned", "auth-5 offered"
        ]);
    }

    async fn a_wait_for_unknown_or_invalid_tasks_is_refused(world: World) {
        world.add("one").await;
        let refusal = |wait: task::Wait| async { code(world.fleet.call(wait).await) };
        assert_eq!(refusal(task::Wait::of(["auth-1", "auth-2"])).await, Code::NotFound);
        assert_eq!(refusal(task::Wait::board("other")).await, Code::NotFound);
        assert_eq!(refusal(task::Wait::of(["auth"])).await, Code::Invalid);
        assert_eq!(refusal(task::Wait::default()).await, Code::Invalid);
        assert_eq!(refusal(task::Wait { board: Some("auth".into()), ..task::Wait::of(["auth-1"]) }).await, Code::Invalid);
        assert_eq!(refusal(task::Wait::of((1..=1001).map(|n| format!("auth-{n}")))).await, Code::Invalid);
        // All its tasks were pruned: there is nothing to wait for.
        world.fleet.transaction(|tx| Box::pin(async move {
            tx.execute("insert into board(name, next_n, created_at) values ('old', 7, 0)", params![]).await
        })).await.unwrap();
        let old = world.fleet.call(task::Wait::board("old")).await.unwrap();
        assert_eq!(old, task::wait::Waited { over: true, ..Default::default() });
    }

    /// A board of many tasks is counted by index, and the reply lists only some.
    async fn a_large_board_is_counted_and_not_listed(world: World) {
        let tasks = (0..3000).map(|n| task::plan::Item { title: format!("t{n}"), ..Default::default() }).collect();
        world.fleet.call(task::Plan { tasks, board: Some("auth".into()), ..task::Plan::default() }).await.unwrap();
        let before = world.fleet.stats().statements;
        let waited = world.fleet.call(task::Wait::board("auth")).await.unwrap();
        assert_eq!((waited.over, waited.open, waited.tasks.len()), (false, 3000, 20));
        assert!(world.fleet.stats().statements - before < 15);
    }
}

fn states(waited: &task::wait::Waited) -> Vec<String> {
    waited.tasks.iter().map(|task| format!("{} {}", task.id, task.status.as_str())).collect()
}

/// Waits until the log can be read to its end. On PostgreSQL an older transaction of another test may hold it back.
pub async fn readable(world: &World) {
    eventually("the log is readable", async || {
        let stored = world.kinds().await.len();
        let all = event::List { limit: Some(1000), ..Default::default() };
        world.fleet.call(all).await.unwrap().events.len() == stored
    })
    .await;
}

/// A renewal is a commit, but changes no other call's reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_wakes_nobody() {
    let world = World::sqlite().await;
    one_is_held(&world).await;
    let waiter = waits(&world.fleet, next("b", 600));
    parked(&world.fleet, 1).await;
    let before = world.fleet.stats();
    world.pass(20);
    world.again().await.call(run::Renew { run: "a".into(), ttl_ms: None }).await.unwrap();
    until(&world.fleet, "the watcher has seen it", |now| now.statements > before.statements).await;
    let after = world.fleet.stats();
    assert_eq!((after.statements, after.batched), (before.statements + 1, before.batched));
    waiter.abort();
}

/// With the system clock, tokio's timer ends waits and leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_time_wakes() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = Fleet::open(&dir.path().join("fence.db").display().to_string()).await.unwrap();
    fleet.call(task::Add::new("long", "one")).await.unwrap();
    fleet.call(task::Claim::next("long", "a")).await.unwrap();
    let hasty = task::Claim { wait_ms: Some(Millis(50)), ..task::Claim::next("long", "b") };
    assert_eq!(code(fleet.call(hasty).await), Code::NoneReady);
    fleet.call(task::Add::new("auth", "one")).await.unwrap();
    let short = task::Claim { ttl_ms: Some(Millis::seconds(1)), ..task::Claim::next("auth", "c") };
    fleet.call(short).await.unwrap();
    let claimed = fleet.call(next("b", 60)).await.unwrap();
    assert_eq!(claimed.claim.token, "task/auth-1@2");
}

/// A claim skips rows that another transaction has locked. If that is rolled back, no event says that the task is free, and
/// unrelated events must not delay the search that finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_unlocked_by_a_rollback_is_found() {
    let world = World::postgres().await;
    world.add("one").await;
    let mut options = options(&world.clock);
    options.fallback.wake_all = Duration::from_millis(300);
    let fleet = Fleet::open_with(&world.url, options).await.unwrap();
    let locked = hold(&world, "select 1 from task for update", "select 1 / 0").await;
    let mut waiter = waits(&fleet, next("b", 60));
    parked(&fleet, 1).await;
    locked.commit().await.expect_err("it is rolled back");
    let other_news = async {
        loop {
            let token = fleet.call(lock::Claim::new("other", "c")).await.unwrap().claim.token;
            fleet.call(claim::Release::new(token)).await.unwrap();
        }
    };
    let claimed = tokio::select! {
        claimed = tokio::time::timeout(PATIENCE, &mut waiter) => claimed.expect("it looks"),
        () = other_news => unreachable!(),
    };
    assert_eq!(claimed.unwrap().unwrap().claim.token, "task/auth-1@1");
}
