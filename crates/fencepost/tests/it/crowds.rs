//! Crowds that wait: whoever could use what is new is woken, and nobody else.

use crate::{
    on_both,
    waiting::{answer, next, nobody_asks, one_is_held, parked, readable, token, until, waits},
    world::{World, eventually},
};
use fencepost::{Fleet, Millis, Result, Time, agent, inbox, mail, params, run, task};
use std::time::Duration;
use tokio::task::JoinHandle;

type Waiting = JoinHandle<Result<agent::poll::Polled>>;

/// What a handful of looks cost, and the watcher's questions, of which there are more on a busy machine (it was seen to be
/// 107 there). If each of two hundred looked, it would be some 1,800; each of fifty, some 500.
const FEW: u64 = 250;

/// A poll that waits for ten minutes: longer than an agent may go unheard.
fn polls(fleet: &Fleet, poll: agent::Poll) -> Waiting {
    waits(fleet, agent::Poll { wait_ms: Some(Millis::minutes(10)), ..poll })
}

fn poll(agent: &str, run: &str) -> agent::Poll {
    agent::Poll { agent: agent.into(), run: run.into(), ..Default::default() }
}

async fn join(world: &World, agent: &str) {
    world.fleet.call(agent::Join { agent: agent.into(), ..Default::default() }).await.expect("joined");
}

/// What it was given.
async fn given(poll: Waiting) -> agent::Type {
    answer(poll).await.expect("an answer").trigger.expect("a trigger").kind
}

/// Until all is quiet; how many statements there were until then. `eye`: the same fleet through connections of its own,
/// whose asking is not counted.
async fn statements(world: &World, eye: &World) -> u64 {
    readable(eye).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.fleet.stats().statements
}

/// It has said that it is there, and need not say so again yet: its promise is for 300 s, and it renews it after a quarter.
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
    async fn a_thousand_wait_for_one_task(world: World) {
        one_is_held(&world).await;
        let mut waiters: Vec<_> = (0..1000).map(|n| waits(&world.fleet, next(&format!("w{n}"), 20))).collect();
        parked(&world.fleet, 1000).await;
        readable(&world).await;
        let before = nobody_asks(&world.fleet).await;

        world.add("one for all").await;
        until(&world.fleet, "one has it", |_| waiters.iter().any(JoinHandle::is_finished)).await;
        let at = waiters.iter().position(JoinHandle::is_finished).unwrap();
        assert_eq!(token(waiters.swap_remove(at)).await, "task/auth-2@1");
        // (Who looks is not parked.)
        nobody_asks(&world.fleet).await;
        parked(&world.fleet, 999).await;
        let spent = world.fleet.stats().statements - before.statements;
        // The add, one claim, two looks in vain, and the watcher's questions: not a thousand claims.
        assert!(spent < FEW, "{spent} statements");
        assert_eq!(world.times("task.claimed").await, 2);
        waiters.iter().for_each(JoinHandle::abort);
        parked(&world.fleet, 0).await;
    }

    /// A crowd of tasks wakes as many, though news wakes but one.
    async fn of_many_tasks_each_goes_to_one_who_waits(world: World) {
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

    /// Whoever is woken may be gone: another gets what it was woken for.
    async fn a_wake_for_one_who_hangs_up_is_passed_on(world: World) {
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
            // It may even have it: then it drops it, as does who is not there to hear.
            drop(first.await);
            token(second).await;
        }
    }

    /// What is due by time alone is one's to look for, whoever waits.
    async fn of_fifty_one_looks_when_a_lease_is_over(world: World) {
        world.add("one").await;
        world.claim_next("a").await.unwrap();
        let waiters: Vec<_> = (0..50).map(|n| waits(&world.fleet, next(&format!("w{n}"), 600))).collect();
        parked(&world.fleet, 50).await;
        readable(&world).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let before = world.fleet.stats().statements;
        world.pass(31);
        // (Who looks is not parked either, so their number says nothing yet.)
        let finished = || waiters.iter().filter(|waiter| waiter.is_finished()).count();
        until(&world.fleet, "one has it", |_| finished() > 0).await;
        parked(&world.fleet, 49).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let spent = world.fleet.stats().statements - before;
        assert!(spent < FEW, "{spent} statements");
        assert_eq!(finished(), 1);
        // And when the end of each has come, each is told.
        world.pass(600);
        for waiter in waiters {
            let _ = answer(waiter).await;
        }
    }

    /// Three hundred who wait, each for something else, and what one of them waits for becomes due by time alone.
    async fn of_three_hundred_only_those_concerned_look_when_a_delay_is_over(world: World) {
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

    /// A fleet of agents, each parked on its poll: what is for one is one's to look for, and so is what is for any.
    async fn of_two_hundred_agents_one_is_woken(world: World) {
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

    /// Who would not take it is not woken in the place of one who would.
    async fn the_pool_wakes_one_who_takes_from_it(world: World) {
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
        // The full one gets the next as soon as its run is over.
        world.add("the next").await;
        world.fleet.call(run::Settle { run: "f1".into(), ..Default::default() }).await.unwrap();
        let [deaf, off, full] = first;
        assert_eq!(given(full).await, agent::Type::PoolTask);
        deaf.abort();
        off.abort();
        parked(&world.fleet, 0).await;
    }

    /// Several polls of a full agent: when there is room, each is a poll like any other again.
    async fn those_of_a_full_agent_are_woken_by_what_comes_later(world: World) {
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

    /// Whoever waits is there: its agent is online for as long as it does.
    async fn an_agent_that_waits_is_online(world: World) {
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
