//! A clock that was once too far ahead: nothing is pruned early, and the clock can be corrected.

use fencepost::{Fleet, Millis, Time, admin, agent, claim::Verdict, event, task};
use fencepost_testing::{World, on_both, world::START};
use std::time::Duration;

const JUMP: Duration = Duration::from_secs(40 * 86_400);

fn asked() -> task::Add {
    task::Add { request: Some("q".into()), ..task::Add::new("auth", "once") }
}

/// Creates what must be remembered: a request id of a finished task, the key of a finished message, and a delivery.
async fn begin(world: &World) {
    world.fleet.call(asked()).await.unwrap();
    world
        .story(
            "
        mail/push s key=k payload=one -> id=1 existing=false
        mail/take s                   -> messages=1
    ",
        )
        .await;
    let token = world.claim_next("a").await.unwrap();
    world.done(&token).await.unwrap();
    world.end("a").await;
}

/// Prunes everything that may be pruned.
async fn prune(world: &World) -> (u64, admin::prune::Pruned) {
    world.follow(event::List::default()).await;
    let events = event::Prune { older_than_ms: Some(Millis(0)) };
    let week = admin::Prune { older_than_ms: Some(Millis::days(7)) };
    let rest = world.fleet.call(week).await.unwrap();
    (world.fleet.call(events).await.unwrap().removed, rest)
}

async fn assert_remembered(world: &World) {
    world.story("mail/push s key=k payload=one -> id=1 existing=true").await;
    assert_eq!(world.fleet.call(asked()).await.unwrap().task.id, "auth-1");
    assert_eq!(world.times("task.added").await, 1);
}

/// Makes one call under a wrong clock.
async fn jump(world: &World) {
    world.clock.set_ahead(JUMP);
    world.story("mail/push other payload=wrong -> existing=false").await;
    world.clock.set_back(JUMP);
}

async fn time(fleet: &Fleet) -> (Millis, Millis) {
    let facts = fleet.call(admin::About {}).await.unwrap();
    (facts.now.since(START.parse::<Time>().unwrap()), facts.ahead_ms)
}

on_both! {
    async fn a_clock_jump_ages_nothing(world: World) {
        begin(&world).await;
        jump(&world).await;
        world.pass(2);
        let pruned = prune(&world).await.1;
        assert_eq!((pruned.tasks, pruned.messages, pruned.runs), (0, 0, 0));
        assert_remembered(&world).await;
        assert_remembered(&world.reopened().await).await;
    }

    /// The prune is the first call after the jump: on PostgreSQL the jump is not stored yet.
    async fn a_prune_under_a_wrong_clock_removes_nothing(world: World) {
        begin(&world).await;
        world.clock.set_ahead(JUMP);
        let pruned = world.fleet.call(admin::Prune::default()).await.unwrap();
        assert_eq!((pruned.tasks, pruned.messages, pruned.runs), (0, 0, 0));
        world.clock.set_ahead(JUMP);
        prune(&world).await;
        assert_remembered(&world).await;
    }

    async fn idle_days_count_as_an_hour(world: World) {
        begin(&world).await;
        world.pass(40 * 86_400);
        prune(&world).await;
        assert_remembered(&world).await;
        // One call in every hour, until the fleet was in use for a week.
        for _ in 1..7 * 24 {
            world.pass(3600);
            world.story("mail/push other payload=hourly -> existing=false").await;
        }
        let pruned = prune(&world).await.1;
        assert_eq!((pruned.tasks, pruned.messages), (0, 0));
        assert_remembered(&world).await;
        world.pass(1);
        let (_, pruned) = prune(&world).await;
        assert_eq!((pruned.tasks, pruned.runs > 0), (1, true));
        assert_eq!(world.fleet.call(asked()).await.unwrap().task.id, "auth-2", "the id is forgotten");
    }

    async fn the_clock_is_corrected(world: World) {
        world.story("
            agent/join bob -> agent.name=bob
            add one        -> auth-1
            add two        -> auth-2
        ").await;
        let before = world.claim("auth-1", "old").await.unwrap();
        let other = world.again().await;
        assert_eq!(time(&other).await, (Millis(0), Millis(0)));
        world.clock.set_ahead(JUMP);
        world.story("
            mail/push s payload=later delay_ms=60000 -> id=1
            agent/join eve                           -> agent.name=eve
        ").await;
        let wrong = world.claim("auth-2", "new").await.unwrap();
        world.clock.set_back(JUMP);
        // On PostgreSQL time stands still until a node notices that the clock was set back.
        world.fleet.call(task::Add::new("other", "three")).await.unwrap();
        world.pass(10);
        let ahead = Millis::from(JUMP);
        for fleet in [&world.fleet, &other, &world.again().await] {
            assert_eq!(time(fleet).await, (Millis(ahead.0 + 10_000), ahead), "it is reported");
        }

        let set = world.fleet.call(admin::SetClock {}).await.unwrap();
        assert_eq!((set.was_ahead_ms, set.now.to_string()), (ahead, "2026-01-01T12:00:10.000Z".into()));
        assert!(set.ended >= 1, "{set:?}");
        world.pass(2);
        for fleet in [&world.fleet, &other, &world.again().await] {
            assert_eq!(time(fleet).await, (Millis::seconds(12), Millis(0)));
        }
        for token in [&before, &wrong] {
            assert_eq!(world.guard(token).await, Verdict::LeaseExpired);
        }
        assert_eq!(world.times("fleet.clock_set").await, 1);

        // Leases and deadlines have their full length.
        let token = world.claim("auth-2", "b").await.unwrap();
        world.pass(29);
        assert_eq!(world.guard(&token).await, Verdict::Ok);
        world.pass(1);
        assert_eq!(world.guard(&token).await, Verdict::LeaseExpired);
        world.story("
            mail/claim s run=m      -> refused none_ready
            +17s mail/claim s run=m -> refused none_ready
            +1s mail/claim s run=m  -> claims=message/1@1
        ").await;
        // The corrected time applies to both agents: one joined before the jump, one during it.
        world.pass(86_400);
        let agents = world.fleet.call(agent::List::default()).await.unwrap().agents;
        assert_eq!(agents.iter().filter(|agent| agent.online).count(), 0);
        let again = world.fleet.call(admin::SetClock {}).await.unwrap();
        assert_eq!((again.was_ahead_ms, again.ended), (Millis(0), 0));
    }

    /// A node that started before the correction stores none of the wrong times after it.
    async fn a_corrected_clock_stays_correct(world: World) {
        world.add("one").await;
        let nodes = [world.again().await, world.again().await];
        jump(&world).await;
        for node in &nodes {
            node.call(task::Add::new("auth", "more")).await.unwrap();
        }
        world.pass(5);
        nodes[0].call(admin::SetClock {}).await.unwrap();
        for node in [&world.fleet, &nodes[0], &nodes[1]] {
            world.pass(5);
            node.call(task::Add::new("auth", "more")).await.unwrap();
            assert_eq!(time(node).await.1, Millis(0));
        }
        world.clock.set_back(Duration::from_secs(3600));
        world.add("two").await;
        assert_eq!(time(&world.fleet).await, (Millis::seconds(20), Millis(3_600_000)));
    }
}
