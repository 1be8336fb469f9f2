//! Many waiting calls: an event wakes only those that could use it.

use crate::waiting::{answer, next, nobody_asks, one_is_held, parked, readable, token, until, waits};
use fencepost::{Fleet, Millis, Result, Time, agent, inbox, mail, params, run, task};
use fencepost_testing::{World, eventually, on_both};
use std::time::Duration;
use tokio::task::JoinHandle;

type Waiting = JoinHandle<Result<agent::poll::Polled>>;

/// A limit on statements: a few attempts, and the watcher's queries, of which a busy machine makes more (107 were seen). If
/// all of two hundred waiters tried, it would be about 1,800; all of fifty, about 500.
const FEW: u64 = 250;

/// A poll that waits for ten minutes, which is longer than an agent may be silent.
fn polls(fleet: &Fleet, poll: agent::Poll) -> Waiting {
    waits(fleet, agent::Poll { wait_ms: Some(Millis::minutes(10)), ..poll })
}

fn poll(agent: &str, run: &str) -> agent::Poll {
    agent::Poll { agent: agent.into(), run: run.into(), ..Default::default() }
}

async fn join(world: &World, agent: &str) {
    world.fleet.call(agent::Join { agent: agent.into(), ..Default::default() }).await.expect("joined");
}

/// The trigger that it was given.
async fn given(poll: Waiting) -> agent::Type {
    answer(poll).await.expect("an answer").trigger.expect("a trigger").kind
}

/// Waits until no more statements are run, and returns how many there were. `eye` is the same fleet through its own
/// connections, so that its queries are not counted.
async fn statements(world: &World, eye: &World) -> u64 {
    readable(eye).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.fleet.stats().statements
}

/// The agent has reported itself as online for 300 s, and reports again after a quarter of that.
async fn is_heard(eye: &World, agent: &'static str) -> bool {
    let heard = eye.fleet.transaction(move |tx| {
        Box::pin(async move {
            let rows = tx.query("select heard_until from agent where name = ?1", params![agent]).await?;
            Ok(rows[0].get::<Time>("heard_until")?.since(tx.now) > Millis::seconds(225))
        })
    });
    heard.await.expect("an answer")
}

on_both! {
    async fn one_task_wakes_one_of_a_thousand(world: World) {
        one_is_held(&world).await;
        let mut waiters: Vec<_> = (0..1000).map(|n| waits(&world.fleet, next(&format!("w{n}"), 20))).collect();
        parked(&world.fleet, 1000).await;
        readable(&world).await;
        let before = nobody_asks(&world.fleet).await;

        world.add("one for all").await;
        until(&world.fleet, "one has it", |_| waiters.iter().any(JoinHandle::is_finished)).await;
        let at = waiters.iter().position(JoinHandle::is_finished).unwrap();
        assert_eq!(token(waiters.swap_remove(at)).await, "task/auth-2@1");
        // (A call that is trying is not parked.)
        nobody_asks(&world.fleet).await;
        parked(&world.fleet, 999).await;
        let spent = world.fleet.stats().statements - before.statements;
        // The add, one claim, two failed attempts, and the watcher's queries: not a thousand claims.
        assert!(spent < FEW, "{spent} statements");
        assert_eq!(world.times("task.claimed").await, 2);
        waiters.iter().for_each(JoinHandle::abort);
        parked(&world.fleet, 0).await;
    }

    /// Many tasks wake as many waiters, although one event wakes only one.
    async fn many_tasks_wake_as_many_waiters(world: World) {
        one_is_held(&world).await;
        let waiters: Vec<_> = (0..100).map(|n| waits(&world.fleet, next(&format!("w{n}"), 60))).collect();
        parked(&world.fleet, 100).await;
        let tasks = vec![task::plan::Item { title: "x".into(), ..Default::default() }; 100];
        let plan = task::Plan { board: Some("auth".into()), tasks, request: None };
        world.again().await.call(plan).await.unwrap();
        let mut taken = std::collections::HashSet::new();
        for waiter in waiters {
            assert!(taken.insert(token(waiter).await), "taken twice");
        }
    }

    /// A woken waiter may be gone: the wake is passed on to another.
    async fn the_wake_of_a_waiter_that_hangs_up_is_passed_on(world: World) {
        one_is_held(&world).await;
        for round in 0..30_u64 {
            let first = tokio::spawn({
                let (fleet, wish) = (world.fleet.clone(), next(&format!("a{round}"), 60));
                async move { fleet.deliver(wish).await }
            });
            parked(&world.fleet, 1).await;
            let second = waits(&world.fleet, next(&format!("b{round}"), 60));
            parked(&world.fleet, 2).await;
            let adding = tokio::spawn({
                let fleet = world.fleet.clone();
                async move { fleet.call(task::Add::new("auth", "x")).await.unwrap() }
            });
            tokio::time::sleep(Duration::from_micros(100 * round)).await;
            first.abort();
            adding.await.unwrap();
            // It may already have the claim: then dropping the call gives it back.
            drop(first.await);
            token(second).await;
        }
    }

    /// When a deadline passes, only one of the waiters tries.
    async fn the_end_of_a_lease_wakes_one_of_fifty(world: World) {
        world.add("one").await;
        world.claim_next("a").await.unwrap();
        let waiters: Vec<_> = (0..50).map(|n| waits(&world.fleet, next(&format!("w{n}"), 600))).collect();
        parked(&world.fleet, 50).await;
        readable(&world).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let before = world.fleet.stats().statements;
        world.pass(31);
        // (A call that is trying is not parked, so the number of parked calls does not tell yet.)
        let finished = || waiters.iter().filter(|waiter| waiter.is_finished()).count();
        until(&world.fleet, "one has it", |_| finished() > 0).await;
        parked(&world.fleet, 49).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let spent = world.fleet.stats().statements - before;
        assert!(spent < FEW, "{spent} statements");
        assert_eq!(finished(), 1);
        // Each gets its reply when its own wait ends.
        world.pass(600);
        for waiter in waiters {
            let _ = answer(waiter).await;
        }
    }

    /// Three hundred calls wait for different mailboxes, and a delay in one of these ends.
    async fn the_end_of_a_delay_wakes_only_its_waiters(world: World) {
        let eye = world.reopened().await;
        let of = |n: i32| mail::Claim { wait_ms: Some(Millis::minutes(10)), ..mail::Claim::next(format!("box{n}"), format!("w{n}")) };
        let waiters: Vec<_> = (0..300).map(|n| waits(&world.fleet, of(n))).collect();
        parked(&world.fleet, 300).await;
        let push = mail::Push { delay_ms: Some(Millis::seconds(20)), ..mail::Push::new("box7", "x") };
        world.fleet.call(push).await.unwrap();
        let before = statements(&world, &eye).await;
        world.pass(20);
        let mut waiters = waiters;
        let claimed = answer(waiters.swap_remove(7)).await.unwrap();
        assert_eq!(claimed.claims.len(), 1);
        let spent = statements(&world, &eye).await - before;
        assert!(spent < FEW, "{spent} statements");
        waiters.iter().for_each(JoinHandle::abort);
        parked(&world.fleet, 0).await;
    }

    /// Every agent waits in a poll: an item for one agent wakes that one, and an item for the pool wakes only one.
    async fn an_item_wakes_one_of_two_hundred_agents(world: World) {
        let eye = world.reopened().await;
        for n in 0..200 {
            join(&world, &format!("a{n}")).await;
        }
        let mut polling: Vec<_> = (0..200).map(|n| polls(&world.fleet, poll(&format!("a{n}"), &format!("r{n}")))).collect();
        parked(&world.fleet, 200).await;
        let before = statements(&world, &eye).await;
        world.fleet.call(inbox::Send { agent: "a7".into(), text: "hello".into(), ..Default::default() }).await.unwrap();
        assert_eq!(given(polling.swap_remove(7)).await, agent::Type::InboxMessage);
        let spent = statements(&world, &eye).await - before;
        assert!(spent < FEW, "{spent} statements for a message");

        let before = statements(&world, &eye).await;
        world.fleet.call(run::Settle { run: "r7".into(), ..Default::default() }).await.unwrap();
        let spent = statements(&world, &eye).await - before;
        assert!(spent < FEW, "{spent} statements for the end of a run");

        let before = statements(&world, &eye).await;
        world.add("for any").await;
        until(&world.fleet, "one has it", |_| polling.iter().any(JoinHandle::is_finished)).await;
        let spent = statements(&world, &eye).await - before;
        assert!(spent < FEW, "{spent} statements for a task of the pool");
        assert_eq!(polling.iter().filter(|poll| poll.is_finished()).count(), 1);
        polling.iter().for_each(JoinHandle::abort);
        parked(&world.fleet, 0).await;
    }

    /// An agent that cannot take the task is not woken instead of one that can.
    async fn a_pool_task_wakes_an_agent_that_can_take_it(world: World) {
        for agent in ["deaf", "full", "off", "able"] {
            join(&world, agent).await;
        }
        world.fleet.call(agent::Join { agent: "full".into(), max_concurrent: Some(1), ..Default::default() }).await.unwrap();
        world.fleet.call(inbox::Send { agent: "full".into(), text: "busy".into(), ..Default::default() }).await.unwrap();
        let busy = world.fleet.call(poll("full", "f1")).await.unwrap();
        assert!(busy.trigger.is_some());
        let deaf = agent::Poll { accept: Some(vec![agent::Type::InboxMessage]), ..poll("deaf", "d") };
        let off = agent::Poll { pool: agent::poll::PoolMode::Off, ..poll("off", "o") };
        let first = [deaf, off, poll("full", "f2")].map(|poll| polls(&world.fleet, poll));
        parked(&world.fleet, 3).await;
        let able = polls(&world.fleet, poll("able", "a"));
        parked(&world.fleet, 4).await;
        world.add("for any").await;
        assert_eq!(given(able).await, agent::Type::PoolTask);
        // The full agent gets the next task as soon as its run ends.
        world.add("the next").await;
        world.fleet.call(run::Settle { run: "f1".into(), ..Default::default() }).await.unwrap();
        let [deaf, off, full] = first;
        assert_eq!(given(full).await, agent::Type::PoolTask);
        deaf.abort();
        off.abort();
        parked(&world.fleet, 0).await;
    }

    /// A poll for one board is not woken instead of one for the board of the task.
    async fn a_pool_task_wakes_a_poll_for_its_board(world: World) {
        join(&world, "bob").await;
        let of = |board: &str| agent::Poll { board: Some(board.into()), ..poll("bob", board) };
        let a = polls(&world.fleet, of("a"));
        parked(&world.fleet, 1).await;
        let b = polls(&world.fleet, of("b"));
        parked(&world.fleet, 2).await;
        let on = |board: &str| task::Add::new(board, "x");
        world.fleet.call(on("b")).await.unwrap();
        assert_eq!(given(b).await, agent::Type::PoolTask);
        assert!(!a.is_finished());
        world.fleet.call(on("a")).await.unwrap();
        assert_eq!(given(a).await, agent::Type::PoolTask);
    }

    /// Several polls of a full agent: when its run ends, they are woken like any other.
    async fn polls_of_a_full_agent_are_woken_when_it_has_room(world: World) {
        let eye = world.reopened().await;
        let may = |max| agent::Join { agent: "full".into(), max_concurrent: Some(max), ..Default::default() };
        let send = || inbox::Send { agent: "full".into(), text: "x".into(), ..Default::default() };
        world.fleet.call(may(1)).await.unwrap();
        world.fleet.call(send()).await.unwrap();
        assert!(world.fleet.call(poll("full", "f1")).await.unwrap().trigger.is_some());
        let polling = ["f2", "f3"].map(|run| polls(&world.fleet, poll("full", run)));
        parked(&world.fleet, 2).await;
        world.fleet.call(may(3)).await.unwrap();
        for _ in 0..2 {
            statements(&world, &eye).await;
            world.fleet.call(send()).await.unwrap();
        }
        for poll in polling {
            assert_eq!(given(poll).await, agent::Type::InboxMessage);
        }
    }

    /// An agent is online for as long as its poll waits.
    async fn a_waiting_agent_is_online(world: World) {
        let eye = world.reopened().await;
        join(&world, "bob").await;
        let waiting = polls(&world.fleet, poll("bob", "b"));
        parked(&world.fleet, 1).await;
        for _ in 0..8 {
            world.pass(70);
            eventually("it is heard", async || is_heard(&eye, "bob").await).await;
            let agents = world.fleet.call(agent::List::default()).await.unwrap().agents;
            assert!(agents[0].online, "{agents:?}");
        }
        waiting.abort();
        parked(&world.fleet, 0).await;
        world.pass(301);
        let agents = world.fleet.call(agent::List::default()).await.unwrap().agents;
        assert!(!agents[0].online, "{agents:?}");
    }
}
