//! Consumers that race in real time.

use fencepost::{Code, Error, Fleet, Millis, mail, params};
use fencepost_testing::{PATIENCE, World, on_both, world::claim_mail};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

async fn push_many(world: &World, mailbox: &str, count: usize, lane: impl Fn(usize) -> Option<String>) {
    let items: Vec<_> = (0..count)
        .map(|i| mail::push_many::Item {
            mailbox: mailbox.into(),
            payload: Some(fencepost::Json::from(serde_json::json!(i))),
            lane: lane(i),
            ..Default::default()
        })
        .collect();
    for chunk in items.chunks(500) {
        world.fleet.call(mail::PushMany { messages: chunk.to_vec(), request: None }).await.expect("pushed");
    }
}

/// Claims and completes batches until nothing is left. Returns the completed messages.
async fn drain(fleet: Fleet, mailbox: &str, run: String, count: i64) -> Vec<String> {
    let mut done = Vec::new();
    loop {
        match claim_mail(&fleet, mailbox, &run, count).await {
            Ok(tokens) => {
                let messages = tokens.iter().map(mail::Done::new).collect();
                let results = fleet.call(mail::DoneMany { messages }).await.expect("completed").results;
                assert!(results.iter().all(|result| result.error.is_none()), "{results:?}");
                done.extend(tokens);
            }
            Err(e) if e.code() == Code::NoneReady => return done,
            Err(e) => panic!("{e:?}"),
        }
    }
}

on_both! {
    async fn each_message_goes_to_one_of_many_claimers(world: World) {
        push_many(&world, "s", 300, |_| None).await;
        let other = world.again().await;
        let consumers: Vec<_> = (0..8)
            .map(|i| {
                let fleet = if i % 2 == 0 { world.fleet.clone() } else { other.clone() };
                tokio::spawn(async move { drain(fleet, "s", format!("r{i}"), 1 + i % 3).await })
            })
            .collect();
        let mut all = Vec::new();
        for consumer in consumers {
            all.extend(consumer.await.unwrap());
        }
        all.sort();
        let taken = all.len();
        all.dedup();
        assert_eq!((taken, all.len()), (300, 300));
        assert_eq!(world.times("message.completed").await, 300);
    }

    /// Eight consumers, five lanes, random failures and releases: in each lane the completions are in order, and at most one
    /// message is in flight.
    async fn strict_order_holds_under_many_consumers(world: World) {
        let strict = mail::Configure {
            mailbox: "s".into(), strict: Some(true), max_attempts: Some(1000), backoff_ms: Some(Millis(0)),
            ..Default::default()
        };
        world.fleet.call(strict).await.unwrap();
        push_many(&world, "s", 60, |i| Some(format!("lane{}", i % 5))).await;
        let order: Arc<Mutex<BTreeMap<String, Vec<i64>>>> = Arc::default();
        let flying: Arc<Mutex<BTreeMap<String, i64>>> = Arc::default();
        let left = Arc::new(AtomicU64::new(100));
        let other = world.again().await;
        // Others push meanwhile: a lane that runs empty must not get stuck.
        let pusher = {
            let (world, other) = (world.clone(), other.clone());
            tokio::spawn(async move {
                for i in 0..40 {
                    let fleet = if i % 2 == 0 { &world.fleet } else { &other };
                    let push = mail::Push { lane: Some(format!("lane{}", i % 5)), ..mail::Push::new("s", "late") };
                    fleet.call(push).await.unwrap();
                }
            })
        };
        let consumers: Vec<_> = (0..8)
            .map(|i| {
                let fleet = if i % 2 == 0 { world.fleet.clone() } else { other.clone() };
                let (order, flying, left) = (order.clone(), flying.clone(), left.clone());
                tokio::spawn(async move {
                    while left.load(Ordering::SeqCst) > 0 {
                        let claim = mail::Claim { count: Some(2), ..mail::Claim::next("s", format!("r{i}")) };
                        let claims = match fleet.call(claim).await {
                            Ok(claimed) => claimed.claims,
                            Err(e) if e.code() == Code::NoneReady => continue,
                            Err(e) => panic!("{e:?}"),
                        };
                        for claimed in claims {
                            let (token, lane) = (claimed.claim.token, claimed.message.lane.unwrap());
                            let before = flying.lock().unwrap().insert(lane.clone(), claimed.message.id);
                            assert_eq!(before, None, "two of {lane} are in flight");
                            // A real call: during it another consumer could be given the next message of this lane.
                            assert!(fleet.call(fencepost::claim::Guard::new(&token)).await.unwrap().ok);
                            flying.lock().unwrap().remove(&lane);
                            match fastrand::u8(..) % 4 {
                                0 => drop(fleet.call(mail::Fail { retry: true, ..mail::Fail::new(&token, "luck") }).await.unwrap()),
                                1 => drop(fleet.call(mail::Release { tokens: vec![token] }).await.unwrap()),
                                _ => {
                                    order.lock().unwrap().entry(lane).or_default().push(claimed.message.id);
                                    fleet.call(mail::Done::new(&token)).await.unwrap();
                                    left.fetch_sub(1, Ordering::SeqCst);
                                }
                            }
                        }
                    }
                })
            })
            .collect();
        pusher.await.unwrap();
        for consumer in consumers {
            consumer.await.unwrap();
        }
        let order = order.lock().unwrap();
        assert_eq!(order.values().map(Vec::len).sum::<usize>(), 100);
        for (lane, ids) in &*order {
            assert!(ids.is_sorted(), "{lane}: {ids:?}");
        }
    }

    /// Expiry gives all of them back, in bounded steps.
    async fn a_run_that_held_five_thousand_messages_lapses(world: World) {
        push_many(&world, "s", 5000, |_| None).await;
        for _ in 0..5 {
            claim_mail(&world.fleet, "s", "big", 1000).await.unwrap();
        }
        world.pass(30);
        let ready = async || -> i64 {
            let stored = "select count(*) as n from message where ready = 1";
            let rows = world.fleet.transaction(move |tx| Box::pin(tx.query(stored, params![]))).await.unwrap();
            rows[0].get("n").unwrap()
        };
        assert_eq!(ready().await, 0);
        let shown = world.fleet.call(mail::Stats::default()).await.unwrap().mailboxes.remove(0);
        assert_eq!((shown.ready, shown.processing), (5000, 0), "as it will be written");
        let mut before = 0;
        loop {
            let due = world.fleet.call(expire()).await.unwrap().due;
            let now = ready().await;
            assert!(now - before <= 256, "a step gave back {}", now - before);
            before = now;
            if !due {
                break;
            }
        }
        assert_eq!(ready().await, 5000);
        assert_eq!(claim_mail(&world.fleet, "s", "next", 10).await.unwrap(), ["message/1@2"]);
    }

    async fn the_same_push_at_the_same_moment_makes_one_message(world: World) {
        let other = world.again().await;
        let push = |i: i64| mail::Push { key: Some("k".into()), ..mail::Push::new(format!("new{}", i / 8), "x") };
        let pushes: Vec<_> = (0..32)
            .map(|i| {
                let fleet = if i % 2 == 0 { world.fleet.clone() } else { other.clone() };
                tokio::spawn(async move { fleet.call(push(i)).await.map(|pushed| pushed.message.id) })
            })
            .collect();
        let mut ids = Vec::new();
        for push in pushes {
            ids.push(push.await.unwrap().unwrap_or_else(|e: Error| panic!("{e:?}")));
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 4);
    }

    /// A push wakes only the waiters of its mailbox, because each wake costs statements.
    async fn a_push_wakes_only_the_waiters_of_its_mailbox(world: World) {
        let wait = |i: i64| {
            let fleet = world.fleet.clone();
            tokio::spawn(async move {
                let claim = mail::Claim { wait_ms: Some(Millis::minutes(5)), ..mail::Claim::next(format!("s/{i}"), format!("w{i}")) };
                fleet.call(claim).await
            })
        };
        let waiters: Vec<_> = (0..100).map(wait).collect();
        while world.fleet.stats().waiting < 100 {
            tokio::task::yield_now().await;
        }
        let before = world.fleet.stats().statements;
        let id = world.push("s/42", "x").await;
        let mut waiters = waiters;
        let claimed = waiters.remove(42).await.unwrap().unwrap();
        assert_eq!(claimed.claims[0].message.id, id);
        let statements = world.fleet.stats().statements - before;
        assert!(statements < 250, "{statements} statements for one push and one claim");
        for (i, waiter) in waiters.into_iter().enumerate() {
            assert!(!waiter.is_finished(), "{i}");
            waiter.abort();
        }
    }

    /// A push, the end of a delay, the end of a lease, a lane that becomes free and a resume each wake a waiter.
    async fn waiting_for_the_next_message(world: World) {
        let wait = |mailbox: &'static str| {
            let fleet = world.fleet.clone();
            tokio::spawn(async move {
                let claim = mail::Claim {
                    wait_ms: Some(Millis::minutes(5)), ttl_ms: Some(Millis::seconds(30)), ..mail::Claim::next(mailbox, "w")
                };
                // Real time, so that a missing wake fails the test and does not hang it.
                let woken = tokio::time::timeout(PATIENCE, fleet.call(claim)).await;
                woken.expect("it is woken").map(|claimed| claimed.claims[0].claim.token.clone())
            })
        };
        let parked = async || {
            while world.fleet.stats().waiting == 0 {
                tokio::task::yield_now().await;
            }
        };
        let waiter = wait("push");
        parked().await;
        let id = world.push("push", "x").await;
        assert_eq!(waiter.await.unwrap().unwrap(), format!("message/{id}@1"));

        world.fleet.call(mail::Push { delay_ms: Some(Millis::seconds(9)), ..mail::Push::new("late", "x") }).await.unwrap();
        let waiter = wait("late");
        parked().await;
        world.pass(9);
        waiter.await.unwrap().unwrap();

        world.push("dead", "x").await;
        claim_mail(&world.fleet, "dead", "gone", 1).await.unwrap();
        let waiter = wait("dead");
        parked().await;
        world.pass(30);
        assert!(waiter.await.unwrap().unwrap().ends_with("@2"));

        world.fleet.call(mail::Configure { mailbox: "turn".into(), strict: Some(true), ..Default::default() }).await.unwrap();
        world.push("turn", "x").await;
        world.push("turn", "y").await;
        let head = claim_mail(&world.fleet, "turn", "other", 1).await.unwrap().remove(0);
        let waiter = wait("turn");
        parked().await;
        world.fleet.call(mail::Done::new(head)).await.unwrap();
        waiter.await.unwrap().unwrap();

        world.push("paused", "x").await;
        world.fleet.call(mail::Pause { mailbox: "paused".into(), reason: None }).await.unwrap();
        let waiter = wait("paused");
        parked().await;
        world.fleet.call(mail::Resume { mailbox: "paused".into() }).await.unwrap();
        waiter.await.unwrap().unwrap();
    }
}

fn expire() -> fencepost::admin::Expire {
    fencepost::admin::Expire {}
}

/// Two calls on PostgreSQL, step by step: the first is stopped before its commit while the second runs.
mod step_by_step {
    use crate::open_transactions::{meet, run_to_commit};
    use fencepost::{Code, claim::Verdict, mail, run};
    use fencepost_testing::{World, world::code};

    async fn strict(world: &World) {
        let strict = mail::Configure { mailbox: "s".into(), strict: Some(true), ..Default::default() };
        world.fleet.call(strict).await.unwrap();
    }

    /// Without the lock on the run's row, ending does not see the claim, and the message is held for ever.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_claim_that_races_the_end_of_its_run_leaves_nothing_held() {
        let world = World::postgres().await;
        world.push("s", "one").await;
        world.push("t", "two").await;
        world.claim_mail("t", "a", 1).await.unwrap();
        let end = run::End { run: "a".into(), ..run::End::default() };
        let (claimed, ended) = meet(&world, mail::Claim::next("s", "a"), end).await;
        ended.unwrap();
        assert_eq!(world.guard(&claimed.unwrap().claims[0].claim.token).await, Verdict::LeaseExpired);
        world.assert_sound().await;
    }

    /// Without the lane's lock the push sees the head, takes its place behind it, and the head's end does not see the
    /// push: the lane would stand still for ever.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_push_that_races_the_end_of_its_lanes_head_is_not_stuck() {
        let world = World::postgres().await;
        strict(&world).await;
        world.push("s", "one").await;
        let token = world.claim_mail("s", "a", 1).await.unwrap().remove(0);
        let (done, pushed) = meet(&world, mail::Done::new(&token), mail::Push::new("s", "two")).await;
        done.unwrap();
        pushed.unwrap();
        world.assert_sound().await;
        let token = world.claim_mail("s", "a", 1).await.unwrap().remove(0);
        let (pushed, done) = meet(&world, mail::Push::new("s", "three"), mail::Done::new(&token)).await;
        pushed.unwrap();
        done.unwrap();
        world.assert_sound().await;
        world.claim_mail("s", "a", 1).await.unwrap();
    }

    /// A take finishes the message at once.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_push_that_races_a_take_is_not_stuck() {
        let world = World::postgres().await;
        strict(&world).await;
        let take = mail::Take { mailboxes: vec!["s".into()], ..Default::default() };
        world.push("s", "one").await;
        let (taken, pushed) = meet(&world, take.clone(), mail::Push::new("s", "two")).await;
        taken.unwrap();
        pushed.unwrap();
        world.assert_sound().await;
        let (pushed, taken) = meet(&world, mail::Push::new("s", "three"), take.clone()).await;
        pushed.unwrap();
        taken.unwrap();
        world.assert_sound().await;
        assert_eq!(world.fleet.call(take.clone()).await.unwrap().messages[0].id, 3);

        // A free lane does not wait for a held one.
        let push_to = |lane: &str| mail::Push { lane: Some(lane.into()), ..mail::Push::new("s", "next") };
        world.fleet.call(push_to("busy")).await.unwrap();
        world.fleet.call(push_to("free")).await.unwrap();
        let busy = run_to_commit(&world, push_to("busy")).await;
        let both = mail::Take { count: Some(2), ..take };
        let taken = world.fleet.call(both).await.unwrap().messages;
        assert_eq!(taken.iter().map(|message| message.id).collect::<Vec<_>>(), [5]);
        busy.commit().await.unwrap();
        world.assert_sound().await;
    }

    /// Two fleets in one database have separate lanes and requests, even under the same names.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_fleet_does_not_delay_another() {
        let (world, other) = (World::postgres().await, World::postgres().await);
        strict(&world).await;
        strict(&other).await;
        let push = mail::Push { request: Some("twice".into()), ..mail::Push::new("s", "one") };
        let open = run_to_commit(&world, push.clone()).await;
        other.fleet.call(push).await.unwrap();
        open.commit().await.unwrap();
    }

    /// Two pushes find the lane empty: only one message may be claimed.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn two_first_messages_of_a_lane_are_not_both_claimable() {
        let world = World::postgres().await;
        strict(&world).await;
        let (first, second) = meet(&world, mail::Push::new("s", "one"), mail::Push::new("s", "two")).await;
        first.unwrap();
        second.unwrap();
        world.assert_sound().await;
        assert_eq!(world.claim_mail("s", "a", 9).await.unwrap().len(), 1);
    }

    /// The last attempt lapses while its lane gets another message.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lapse_that_races_a_push_passes_the_turn_on() {
        let world = World::postgres().await;
        strict(&world).await;
        let last = mail::Push { max_attempts: Some(1), ..mail::Push::new("s", "one") };
        world.fleet.call(last).await.unwrap();
        world.claim_mail("s", "a", 1).await.unwrap();
        world.pass(30);
        let (settled, pushed) = meet(&world, super::expire(), mail::Push::new("s", "two")).await;
        settled.unwrap();
        pushed.unwrap();
        world.assert_sound().await;
        assert_eq!(world.claim_mail("s", "b", 1).await.unwrap(), ["message/2@1"]);
    }

    /// The second call finds the mailbox strict, or is refused.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_mailbox_created_twice_at_once_has_one_setting() {
        let world = World::postgres().await;
        let strict = mail::Configure { mailbox: "s".into(), strict: Some(true), ..Default::default() };
        let (made, pushed) = meet(&world, strict.clone(), mail::Push::new("s", "one")).await;
        made.unwrap();
        pushed.unwrap();
        world.assert_sound().await;
        let other = mail::Configure { mailbox: "t".into(), ..strict };
        let (pushed, refused) = meet(&world, mail::Push::new("t", "one"), other).await;
        pushed.unwrap();
        assert_eq!(code(refused), Code::NotReady);
        world.assert_sound().await;
    }

    /// The message is given back or completed, never both.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_reset_that_races_a_completion_decides_once() {
        let world = World::postgres().await;
        world.push("s", "one").await;
        let token = world.claim_mail("s", "a", 1).await.unwrap().remove(0);
        let reset = mail::Reset { mailbox: Some("s".into()), ..Default::default() };
        let (back, done) = meet(&world, reset.clone(), mail::Done::new(&token)).await;
        assert_eq!((back.unwrap().reset, code(done)), (1, Code::LeaseExpired));
        let token = world.claim_mail("s", "a", 1).await.unwrap().remove(0);
        let (done, back) = meet(&world, mail::Done::new(&token), reset).await;
        done.unwrap();
        assert_eq!(back.unwrap().reset, 0);
        world.assert_sound().await;
    }
}
