//! A clock that was too far ahead once: nothing is forgotten early, and it can be put right.

use crate::{
    on_both,
    world::{START, World},
};
use fencepost::{Fleet, Millis, Time, admin, agent, claim::Verdict, event, task};
use std::time::Duration;

const JUMP: Duration = Duration::from_secs(40 * 86_400);

fn asked() -> task::Add {
    task::Add { request: Some("q".into()), ..task::Add::new("auth", "once") }
}

impl World {
    /// Something to be remembered: a request id and the key of a message, both of something finished, and a delivery.
    async fn begin(&self) {
        self.fleet.call(asked()).await.unwrap();
        self.story(
            "
            mail/push s key=k payload=one -> id=1 existing=false
            mail/take s                   -> messages=1
        ",
        )
        .await;
        let token = self.claim_next("a").await.unwrap();
        self.done(&token).await.unwrap();
        self.end("a").await;
    }

    /// All that may be forgotten is.
    async fn prune(&self) -> (u64, admin::prune::Pruned) {
        self.follow(event::List::default()).await;
        let events = event::Prune { older_than_ms: Some(Millis(0)) };
        let week = admin::Prune { older_than_ms: Some(Millis::days(7)) };
        let rest = self.fleet.call(week).await.unwrap();
        (self.fleet.call(events).await.unwrap().removed, rest)
    }

    async fn assert_remembered(&self) {
        self.story("mail/push s key=k payload=one -> id=1 existing=true").await;
        assert_eq!(self.fleet.call(asked()).await.unwrap().task.id, "auth-1");
        assert_eq!(self.times("task.added").await, 1);
    }

    /// The wall clock is wrong for one call.
    async fn jump(&self) {
        self.clock.set_ahead(JUMP);
        self.story("mail/push other payload=wrong -> existing=false").await;
        self.clock.set_back(JUMP);
    }
}

async fn time(fleet: &Fleet) -> (Millis, Millis) {
    let facts = fleet.call(admin::About {}).await.unwrap();
    (facts.now.since(START.parse::<Time>().unwrap()), facts.ahead_ms)
}

on_both! {
    async fn nothing_grows_old_by_a_jump(world: World) {
        world.begin().await;
        world.jump().await;
        world.pass(2);
        let pruned = world.prune().await.1;
        assert_eq!((pruned.tasks, pruned.messages, pruned.runs), (0, 0, 0));
        world.assert_remembered().await;
        world.reopened().await.assert_remembered().await;
    }

    /// The prune is the first call under it: on PostgreSQL nothing of the jump is stored yet.
    async fn a_prune_under_a_wrong_clock_forgets_nothing(world: World) {
        world.begin().await;
        world.clock.set_ahead(JUMP);
        let pruned = world.fleet.call(admin::Prune::default()).await.unwrap();
        assert_eq!((pruned.tasks, pruned.messages, pruned.runs), (0, 0, 0));
        world.clock.set_ahead(JUMP);
        world.prune().await;
        world.assert_remembered().await;
    }

    async fn of_days_in_which_nobody_calls_an_hour_counts(world: World) {
        world.begin().await;
        world.pass(40 * 86_400);
        world.prune().await;
        world.assert_remembered().await;
        // A call in every hour, until a week has been in use.
        for _ in 1..7 * 24 {
            world.pass(3600);
            world.story("mail/push other payload=hourly -> existing=false").await;
        }
        let pruned = world.prune().await.1;
        assert_eq!((pruned.tasks, pruned.messages), (0, 0));
        world.assert_remembered().await;
        world.pass(1);
        let (_, pruned) = world.prune().await;
        assert_eq!((pruned.tasks, pruned.runs > 0), (1, true));
        assert_eq!(world.fleet.call(asked()).await.unwrap().task.id, "auth-2", "the id is forgotten");
    }

    async fn the_clock_is_put_right(world: World) {
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
        // On PostgreSQL time stands still until a node comes to know that the clock was set back.
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

        // Leases are as long as they say, deadlines come as late as they would have.
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
        // Both agents are heard by the right time: who joined before the jump, and who joined under it.
        world.pass(86_400);
        let agents = world.fleet.call(agent::List::default()).await.unwrap().agents;
        assert_eq!(agents.iter().filter(|agent| agent.online).count(), 0);
        let again = world.fleet.call(admin::SetClock {}).await.unwrap();
        assert_eq!((again.was_ahead_ms, again.ended), (Millis(0), 0));
    }

    /// A node that began before the clock was put right stores nothing of its time after.
    async fn a_clock_that_was_put_right_stays_right(world: World) {
        world.add("one").await;
        let nodes = [world.again().await, world.again().await];
        world.jump().await;
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
