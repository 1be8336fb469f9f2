//! The races that went wrong in an experiment, step by step on PostgreSQL. Each test goes on whether or not the second
//! call waits, so that without the rule the test fails by the actual damage.

use crate::open_transactions::{hold, meet, run_to_commit, start};
use fencepost::{Code, Millis, Op, claim, claim::Verdict, lock, run, task};
use fencepost_testing::{PATIENCE, World, world::code};

fn end(run: &str) -> run::End {
    run::End { run: run.into(), ..run::End::default() }
}

fn lock_for_30s(name: &str, run: &str) -> lock::Claim {
    lock::Claim { ttl_ms: Some(Millis::seconds(30)), ..lock::Claim::new(name, run) }
}

/// Without the lock on the run's row, ending would miss the claim, and the task would be held for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_races_the_end_of_its_run_leaves_nothing_held() {
    let world = World::postgres().await;
    let id = world.add("first").await;
    world.fleet.call(lock_for_30s("deploy", "a")).await.unwrap();
    let many = task::ClaimMany { count: 1, run: "a".into(), ..task::ClaimMany::default() };
    let (claimed, ended) = meet(&world, task::Claim::of(&id, "a"), end("a")).await;
    given_back(&world, &claimed.unwrap().claim.token, ended).await;
    world.fleet.call(lock_for_30s("deploy", "a")).await.unwrap();
    let (claimed, ended) = meet(&world, many, end("a")).await;
    given_back(&world, &claimed.unwrap().claims[0].claim.token, ended).await;
}

async fn given_back(world: &World, token: &str, ended: fencepost::Result<run::end::Ended>) {
    ended.unwrap();
    assert_eq!(world.guard(token).await, Verdict::LeaseExpired);
    assert_eq!(world.show("auth-1").await.status, task::Status::Unassigned);
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_claim_that_races_the_end_of_its_run_leaves_nothing_held() {
    let world = World::postgres().await;
    for name in ["deploy", "deploy", "other"] {
        world.fleet.call(lock_for_30s("opens-the-run", "a")).await.unwrap();
        let (claimed, ended) = meet(&world, lock_for_30s(name, "a"), end("a")).await;
        ended.unwrap();
        let token = claimed.unwrap().claim.token;
        assert_eq!(world.guard(&token).await, Verdict::LeaseExpired);
        world.assert_sound().await;
        let next = world.fleet.call(lock_for_30s(name, "b")).await.unwrap();
        world.fleet.call(claim::Release::new(next.claim.token)).await.unwrap();
    }
}

/// The first claim of a run creates its row, and that row must not be ended under the claim either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_first_claims_of_one_name_share_one_run() {
    let world = World::postgres().await;
    world.add("first").await;
    world.add("second").await;
    let (first, second) = meet(&world, task::Claim::of("auth-1", "a"), task::Claim::of("auth-2", "a")).await;
    let first = first.unwrap().claim.token;
    let second = second.unwrap().claim.token;
    world.assert_sound().await;
    assert_eq!((world.guard(&first).await, world.guard(&second).await), (Verdict::Ok, Verdict::Ok));
    world.end("a").await;
    assert_eq!(world.guard(&first).await, Verdict::LeaseExpired);
    assert_eq!(world.guard(&second).await, Verdict::LeaseExpired);
}

/// Expiry skips a run that a claim has locked. The next batch ends it and gives everything back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_races_the_lapse_of_its_run_goes_back_later() {
    let world = World::postgres().await;
    let id = world.add("first").await;
    world.fleet.call(lock_for_30s("deploy", "a")).await.unwrap();
    let claiming = run_to_commit(&world, task::Claim::of(&id, "a")).await;
    world.pass(30);
    let sweeping = start(&world.fleet, task::Claim::next("nowhere", "b"));
    claiming.holds_up(&world, &sweeping).await;
    let token = claiming.commit().await.unwrap().claim.token;
    assert_eq!(code(sweeping.await.unwrap()), Code::NotFound);
    assert_eq!(world.guard(&token).await, Verdict::LeaseExpired);
    world.assert_sound().await;
    assert_eq!(world.claim_next("c").await.unwrap(), "task/auth-1@2");
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_comes_after_the_end_revives_nobody() {
    let world = World::postgres().await;
    let id = world.add("first").await;
    let token = world.claim(&id, "a").await.unwrap();
    world.pass(20);
    let (ended, renewed) = meet(&world, end("a"), claim::Renew::new(&token)).await;
    let ended = ended.unwrap().run;
    assert_eq!(code(renewed), Code::LeaseExpired);
    assert_eq!(world.guard(&token).await, Verdict::LeaseExpired);
    let all = run::List { all: true, ..run::List::default() };
    assert_eq!(world.fleet.call(all).await.unwrap().runs, [ended], "an ended run is never written to again");

    let token = world.claim(&id, "a").await.unwrap();
    world.pass(20);
    let (ended, renewed) = meet(&world, end("a"), run::Renew { run: "a".into(), ttl_ms: None }).await;
    ended.unwrap();
    assert_eq!(code(renewed), Code::LeaseExpired);
    assert_eq!(world.guard(&token).await, Verdict::LeaseExpired);
    world.assert_sound().await;
}

/// Its lease ended while it waited, and others have seen that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_waited_past_the_lease_revives_nobody() {
    let world = World::postgres().await;
    let id = world.add("first").await;
    let token = world.claim(&id, "a").await.unwrap();
    world.pass(20);
    let frozen = hold(&world, "select 1 from run where name = 'a' for update", "select 1").await;
    let renewal = start(&world.fleet, claim::Renew::new(&token));
    assert!(frozen.holds_up(&world, &renewal).await);
    world.pass(20);
    assert_eq!(world.guard(&token).await, Verdict::LeaseExpired);
    frozen.commit().await.unwrap();
    assert_eq!(code(renewal.await.unwrap()), Code::LeaseExpired);
    assert_eq!(world.guard(&token).await, Verdict::LeaseExpired);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_before_the_end_is_ended_with_it() {
    let world = World::postgres().await;
    let id = world.add("first").await;
    let token = world.claim(&id, "a").await.unwrap();
    world.pass(20);
    let (renewed, ended) = meet(&world, claim::Renew::new(&token), end("a")).await;
    renewed.unwrap();
    ended.unwrap();
    assert_eq!(world.guard(&token).await, Verdict::LeaseExpired);
    assert_eq!(world.show(&id).await.status, task::Status::Unassigned);
    world.assert_sound().await;
}

/// The end is uncommitted while the completion reads, so the completion's write must check again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_that_comes_after_the_end_is_refused() {
    let world = World::postgres().await;
    let id = world.add("first").await;
    let token = world.claim(&id, "a").await.unwrap();
    let (ended, done) = meet(&world, end("a"), task::Done::new(&token)).await;
    ended.unwrap();
    assert_eq!(code(done), Code::LeaseExpired);
    assert_eq!(world.show(&id).await.status, task::Status::Unassigned);
    world.assert_sound().await;
}

/// The run ends after the op has read it as alive and before it writes: the write itself checks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_under_a_claim_check_it_in_the_same_statement() {
    async fn refused_by_the_write<O: Op>(world: &World, op: impl FnOnce(String) -> O) {
        let id = world.add("first").await;
        let token = world.claim(&id, "a").await.unwrap();
        // Rows can be read and locked meanwhile, but not written; then the run is ended as `run/end` does it.
        let end =
            "update run set ended_at = opened_at, reason = 'ended' where name = 'a' and ended_at is null";
        let ending = hold(world, "lock table task in share mode", end).await;
        let writing = start(&world.fleet, op(token));
        ending.holds_up(world, &writing).await;
        ending.commit().await.unwrap();
        let refused = writing.await.unwrap().err().map(|e| e.code());
        assert_eq!(refused, Some(Code::LeaseExpired), "{}", O::NAME);
        world.claim(&id, "b").await.unwrap();
        world.assert_sound().await;
    }
    let world = World::postgres().await;
    refused_by_the_write(&world, task::Done::new).await;
    refused_by_the_write(&world, |token| task::Fail::new(token, "late")).await;
    refused_by_the_write(&world, claim::Release::new).await;
    refused_by_the_write(&world, |token| task::Progress::new(token, "late")).await;
    refused_by_the_write(&world, |token| task::SaveCheckpoint {
        token,
        ordinal: 1,
        phase: "late".into(),
        ..task::SaveCheckpoint::default()
    })
    .await;
    assert_eq!(world.times("task.completed").await + world.times("task.progress").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_before_the_end_stands() {
    let world = World::postgres().await;
    let id = world.add("first").await;
    let token = world.claim(&id, "a").await.unwrap();
    let (done, ended) = meet(&world, task::Done::new(&token), end("a")).await;
    done.unwrap();
    ended.unwrap();
    assert_eq!(world.show(&id).await.status, task::Status::Completed);
    assert_eq!(world.times("task.lapsed").await, 0);
    world.assert_sound().await;
}

/// Adding an edge locks the dependency. Otherwise the new task would wait for ever for a completed task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_added_after_one_that_is_being_completed_is_ready() {
    let world = World::postgres().await;
    let id = world.add("first").await;
    let token = world.claim(&id, "a").await.unwrap();
    let add = task::Add { after: vec![id], ..task::Add::new("auth", "second") };
    let (done, added) = meet(&world, task::Done::new(&token), add).await;
    done.unwrap();
    let added = added.unwrap().task;
    assert_eq!((added.waiting_on, world.show(&added.id).await.waiting_on), (0, 0));
    world.assert_sound().await;
    world.claim(&added.id, "b").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_sees_the_task_that_is_being_added_after_it() {
    let world = World::postgres().await;
    let id = world.add("first").await;
    let token = world.claim(&id, "a").await.unwrap();
    let add = task::Add { after: vec![id], ..task::Add::new("auth", "second") };
    let (added, done) = meet(&world, add, task::Done::new(&token)).await;
    let added = added.unwrap().task;
    done.unwrap();
    world.assert_sound().await;
    world.claim(&added.id, "b").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_edges_at_once_close_no_circle() {
    let world = World::postgres().await;
    for title in ["first", "second", "third", "fourth"] {
        world.add(title).await;
    }
    let edge =
        |task: &str, after: &str| task::Depend { task: task.into(), after: after.into(), request: None };
    world.fleet.call(edge("auth-2", "auth-1")).await.unwrap();
    world.fleet.call(edge("auth-4", "auth-3")).await.unwrap();
    // The two have no task in common, so only the lock on all edges keeps them apart.
    let (one, other) = meet(&world, edge("auth-3", "auth-2"), edge("auth-1", "auth-4")).await;
    one.unwrap();
    assert_eq!(code(other), Code::Invalid);
    world.assert_sound().await;
    assert_eq!(world.claim_next("a").await.unwrap(), "task/auth-1@1", "something can begin");
}

/// A retry on another node must not miss its first try because that is not committed yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_waits_for_its_uncommitted_first_try() {
    let world = World::postgres().await;
    let add = task::Add { request: Some("add".into()), ..task::Add::new("auth", "first") };
    let (first, retry) = meet(&world, add.clone(), add).await;
    let first = first.unwrap().task.id;
    assert_eq!(retry.unwrap().task.id, first);
    world.add("second").await;

    let claim = task::Claim { request: Some("claim".into()), ..task::Claim::next("auth", "a") };
    let (first, retry) = meet(&world, claim.clone(), claim).await;
    let first = first.unwrap().claim.token;
    assert_eq!(retry.unwrap().claim.token, first);

    let claim = lock::Claim { request: Some("lock".into()), ..lock_for_30s("deploy", "a") };
    let (first, retry) = meet(&world, claim.clone(), claim).await;
    let first = first.unwrap().claim.token;
    assert_eq!(retry.unwrap().claim.token, first);

    assert_eq!(world.times("task.added").await, 2);
    assert_eq!(world.times("task.claimed").await, 1);
    world.assert_sound().await;
}

/// While another node gives back what a dead run held, a claim does not wait for that node: only one that asked to wait
/// does, and it is woken when the task is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_does_not_wait_for_another_nodes_expiry() {
    let world = World::postgres().await;
    world.add("first").await;
    world.claim_next("dead").await.unwrap();
    world.pass(30);
    let sweeping = run_to_commit(&world, end("dead")).await;
    let waits = task::Claim { wait_ms: Some(Millis::minutes(5)), ..task::Claim::next("auth", "waits") };
    let waiting = start(&world.fleet, waits);
    let claiming = start(&world.fleet, task::Claim::next("auth", "b"));
    assert!(!sweeping.holds_up(&world, &claiming).await);
    assert_eq!(code(claiming.await.unwrap()), Code::NoneReady);
    sweeping.commit().await.unwrap();
    let woken = tokio::time::timeout(PATIENCE, waiting).await.expect("it is woken");
    assert_eq!(woken.unwrap().unwrap().claim.token, "task/auth-1@2");
}

/// A call that read the lease before another lengthened it must not write the shorter one back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_does_not_undo_a_longer_one() {
    let world = World::postgres().await;
    world.add("first").await;
    let token = world.claim_next("a").await.unwrap();
    world.pass(10);
    let longer = claim::Renew { token: token.clone(), ttl_ms: Some(Millis::minutes(60)) };
    let (renewed, heard) = meet(&world, longer, task::Progress::new(&token, "half way")).await;
    let promised = renewed.unwrap().claim.expires_at;
    heard.unwrap();
    let claim = world.show("auth-1").await.claim.expect("still held");
    assert!(claim.expires_at >= promised, "promised {promised}, but it ends at {}", claim.expires_at);
}
