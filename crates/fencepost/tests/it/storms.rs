//! Wake-ups for unread posts, and the limits that keep agents from waking each other without end.

use fencepost::{Fleet, Millis, agent, channel, run, storm};
use fencepost_testing::{World, on_both};
use serde_json::json;

/// Ann, bob and eve are members of `general`.
async fn general(world: &World) {
    world
        .story(
            "
            agent/join ann                   -> agent.online=true
            agent/join bob                   -> agent.online=true
            agent/join eve                   -> agent.online=true
            channel/create general           -> existing=false
            channel/join general agent=ann   -> channel=general
            channel/join general agent=bob   -> channel=general
            channel/join general agent=eve   -> channel=general
        ",
        )
        .await;
}

async fn tick(fleet: &Fleet) -> storm::tick::Ticked {
    let mut all = fleet.call(storm::Tick {}).await.expect("a tick");
    while all.more {
        let next = fleet.call(storm::Tick {}).await.expect("a tick");
        all = storm::tick::Ticked {
            scheduled: all.scheduled + next.scheduled,
            suppressed_budget: all.suppressed_budget + next.suppressed_budget,
            suppressed_breaker: all.suppressed_breaker + next.suppressed_breaker,
            suppressed_cause: all.suppressed_cause + next.suppressed_cause,
            ..next
        };
    }
    all
}

on_both! {
    /// A post wakes the members that have not read it, each once, and not its author.
    async fn a_post_wakes_the_members_of_its_channel(world: World) {
        general(&world).await;
        world.story("
            channel/post general body=hello author=ann -> post.n=1
            storm/tick                                 -> scheduled=2 pending_jobs=2
            storm/tick                                 -> scheduled=0 pending_jobs=2
            agent/poll bob run=b0                      -> trigger=none
            agent/poll bob run=b1 accept=unread_wakeup -> type=unread_wakeup claims=message/1@1,mentions/bob/general@1 channels=general:1-1
            agent/poll bob run=b2 accept=unread_wakeup -> trigger=none
            agent/poll ann run=a1 accept=unread_wakeup -> trigger=none
            run/settle b1                              -> settled=message/1@1,mentions/bob/general@1
            channel/unread bob                         -> channels=none
            +300s storm/tick                           -> scheduled=0
        ").await;
    }

    /// Wake-ups come after mentions and before the pool.
    async fn the_order_of_a_poll(world: World) {
        general(&world).await;
        world.story("
            add pool                                         -> auth-1
            channel/create other                             -> existing=false
            channel/post general body=hello author=ann       -> post.n=1
            channel/post other body=@bob author=ann          -> post.n=1
            storm/tick                                       -> scheduled=2
            agent/poll bob run=b1 accept=pool_task,unread_wakeup,unread_mentions -> type=unread_mentions
            agent/poll bob run=b2 accept=pool_task,unread_wakeup,unread_mentions -> type=unread_wakeup
            agent/poll bob run=b3 accept=pool_task,unread_wakeup,unread_mentions -> type=pool_task
        ").await;
    }

    /// Mentions and wake-ups share the cursor.
    async fn one_post_never_triggers_a_mention_and_a_wake_up(world: World) {
        general(&world).await;
        world.story("
            channel/post general body=@bob author=ann  -> post.n=1
            storm/tick                                 -> scheduled=1
            storm/why channel=general agent=bob        -> state=suppressed why=busy
            agent/poll bob run=b1 accept=unread_wakeup -> trigger=none
            agent/poll bob run=b2                      -> type=unread_mentions
            +31s storm/tick                            -> scheduled=0
            run/settle b2                              -> run.alive=false
            +31s storm/tick                            -> scheduled=0
            channel/post general body=more author=ann  -> post.n=2
            storm/tick                                 -> scheduled=1
            channel/post general body=@bob author=ann  -> post.n=3
            agent/poll bob run=b3                      -> type=unread_mentions channels=general:2-3
            agent/poll bob run=b4 accept=unread_wakeup -> trigger=none
            run/settle b3                              -> run.alive=false
            mail/list mailbox=wakeups/bob              -> messages=2
            agent/poll bob run=b5 accept=unread_wakeup -> trigger=none
        ").await;
        let done = world.call("mail/show", &json!({ "message": 2 })).await.unwrap();
        assert_eq!((&done["message"]["status"], &done["message"]["outcome"]), (&json!("processed"), &json!("read")));
    }

    /// Posts that arrive while a wake-up runs wake the agent again, when its budget allows it.
    async fn posts_during_a_run_are_not_lost(world: World) {
        general(&world).await;
        world.story("
            channel/post general body=one author=ann   -> post.n=1
            storm/tick                                 -> scheduled=2
            agent/poll bob run=b1 accept=unread_wakeup -> channels=general:1-1
            channel/post general body=two author=ann   -> post.n=2
            storm/tick                                 -> scheduled=0
            run/settle b1                              -> run.alive=false
            storm/tick                                 -> scheduled=0 suppressed_budget=1
            storm/why channel=general agent=bob        -> state=suppressed why=interval until=2026-01-01T12:00:30.000Z
            +29s storm/tick                            -> scheduled=0
            +1s storm/tick                             -> scheduled=1
            agent/poll bob run=b2 accept=unread_wakeup -> channels=general:2-2
        ").await;
    }

    /// Posts that wake nobody: marked ones, also for the agents that they mention.
    async fn a_marked_post_wakes_nobody(world: World) {
        general(&world).await;
        world.story("
            channel/post general body=@bob author=ann suppress_auto_trigger=true -> post.n=1 post.mentions=bob
            storm/tick                                 -> scheduled=0
            agent/poll bob run=b1                      -> trigger=none
            channel/post general body=hello author=ann -> post.n=2
            storm/tick                                 -> scheduled=2
            agent/poll bob run=b2 accept=unread_wakeup -> channels=general:1-2
        ").await;
    }

    /// An offline agent gets no wake-up until it polls again.
    async fn offline_agents_are_not_woken(world: World) {
        general(&world).await;
        world.story("
            +301s agent/poll ann run=a1                -> trigger=none
            channel/post general body=hello author=eve -> post.n=1
            storm/tick                                 -> scheduled=1 pending_jobs=1
            storm/why channel=general agent=bob        -> state=suppressed why=offline online=false
            agent/poll bob run=b1                      -> trigger=none
            storm/due                                  -> due=true
            storm/tick                                 -> scheduled=1
            storm/due                                  -> due=false
            agent/poll bob run=b2 accept=unread_wakeup -> type=unread_wakeup
        ").await;
    }

    async fn budgets_are_exact_at_the_edge_of_the_window(world: World) {
        general(&world).await;
        let settle = |n: i64| format!("
            agent/poll bob run=b{n} accept=unread_wakeup -> type=unread_wakeup
            run/settle b{n}                              -> run.alive=false");
        world.story("channel/leave general agent=eve -> channel=general").await;
        for n in 1..=3 {
            world.story(&format!("
                channel/post general body=x author=ann -> post.n={n}
                storm/tick                             -> scheduled=1
                {}
            ", settle(n))).await;
            world.pass(30);
        }
        world.story("
            agent/poll bob run=b0                  -> trigger=none
            channel/post general body=x author=ann -> post.n=4
            storm/tick                             -> scheduled=0 suppressed_budget=1
            storm/why channel=general agent=bob    -> why=budget until=2026-01-01T12:05:00.000Z
        ").await;
        world.pass(210 - 1);
        world.clock.advance(std::time::Duration::from_millis(999));
        assert_eq!(tick(&world.fleet).await.scheduled, 0);
        channel_post(&world.fleet, "general", "ann", "y").await;
        assert_eq!(tick(&world.fleet).await.scheduled, 0);
        world.clock.advance(std::time::Duration::from_millis(1));
        assert_eq!(tick(&world.fleet).await.scheduled, 1);
        // The suppressed posts come with it.
        world.story("agent/poll bob run=b4 accept=unread_wakeup -> channels=general:4-5").await;
    }

    /// The breaker opens at exactly the threshold, stays open through the cooldown, and opens again.
    async fn the_breaker(world: World) {
        general(&world).await;
        set(&world.fleet, None, &[("breaker_backlog_threshold", Some(2)), ("min_interval_ms", Some(0))]).await;
        world.story("
            agent/join kim                             -> agent.online=true
            channel/join general agent=kim             -> channel=general
            channel/post general body=x author=ann     -> post.n=1
            storm/tick                                 -> scheduled=2 suppressed_breaker=1 breaker_open=true pending_jobs=2
            storm/why channel=general agent=kim        -> why=breaker until=2026-01-01T12:01:00.000Z
            agent/poll bob run=b1 accept=unread_wakeup ttl_ms=600000 -> type=unread_wakeup
            agent/poll eve run=e1 accept=unread_wakeup ttl_ms=600000 -> type=unread_wakeup
            run/settle b1                              -> run.alive=false
            +59s storm/tick                            -> scheduled=0 breaker_open=true pending_jobs=1
            +1s storm/tick                             -> scheduled=1 breaker_open=true pending_jobs=2
            +59s storm/tick                            -> breaker_open=true
            agent/poll kim run=k1 accept=unread_wakeup -> type=unread_wakeup
            run/settle k1                              -> run.alive=false
            +1s storm/tick                             -> breaker_open=false pending_jobs=1
            storm/breaker state=open                   -> open=true open_until=none
            +600s storm/tick                           -> breaker_open=true
            storm/breaker state=close                  -> open=false
        ").await;
        assert_eq!(world.times("storm.breaker_opened").await, 3);
    }

    /// Pairs that a breaker held back are woken when a person closes it, without a new post.
    async fn closing_the_breaker_forgets_nobody(world: World) {
        general(&world).await;
        world.story("
            storm/breaker state=open               -> open=true
            channel/post general body=x author=ann -> post.n=1
            storm/tick                             -> scheduled=0 suppressed_breaker=2
            +60s storm/due                         -> due=false
            storm/breaker state=close              -> open=false
            storm/due                              -> due=true
            storm/tick                             -> scheduled=2
            storm/breaker state=open for_ms=60000  -> open=true
            channel/create other                   -> existing=false
            channel/join other agent=bob           -> channel=other
            channel/post other body=x author=ann   -> post.n=1
            storm/tick                             -> scheduled=0 suppressed_breaker=1
            storm/breaker state=close              -> open=false
            storm/tick                             -> scheduled=1
        ").await;
    }

    /// Wake-ups of agents that are offline do not count for the breaker.
    async fn the_backlog_counts_agents_that_are_online(world: World) {
        general(&world).await;
        world.story("
            channel/post general body=x author=ann -> post.n=1
            storm/tick                             -> pending_jobs=2
            +301s agent/poll bob run=b1            -> trigger=none
            storm/tick                             -> pending_jobs=1
        ").await;
    }

    /// The caps on live processes, of an agent and of the fleet.
    async fn caps_on_running_wake_ups(world: World) {
        general(&world).await;
        for channel in ["c1", "c2", "c3"] {
            world.story(&format!("
                channel/create {channel}               -> existing=false
                channel/join {channel} agent=bob       -> channel={channel}
                channel/join {channel} agent=eve       -> channel={channel}
                channel/post {channel} body=x author=ann -> post.n=1
            ")).await;
        }
        set(&world.fleet, None, &[("max_active_global", Some(3))]).await;
        world.story("
            storm/tick                                 -> scheduled=6
            agent/poll bob run=b1 accept=unread_wakeup -> type=unread_wakeup
            agent/poll bob run=b2 accept=unread_wakeup -> type=unread_wakeup
            agent/poll bob run=b3 accept=unread_wakeup -> trigger=none
            agent/poll eve run=e1 accept=unread_wakeup -> type=unread_wakeup
            agent/poll eve run=e2 accept=unread_wakeup -> trigger=none
            run/settle b1                              -> run.alive=false
            agent/poll eve run=e3 accept=unread_wakeup -> type=unread_wakeup
        ").await;
    }
}

async fn channel_post(fleet: &Fleet, channel: &str, author: &str, body: &str) -> i64 {
    let post = channel::Post {
        channel: channel.into(),
        author: Some(author.into()),
        body: body.into(),
        ..Default::default()
    };
    fleet.call(post).await.expect("posted").post.n
}

async fn set(fleet: &Fleet, channel: Option<&str>, values: &[(&str, Option<i64>)]) {
    let values =
        values.iter().map(|(name, value)| (serde_json::from_value(json!(name)).expect("a setting"), *value));
    let set = storm::Set { values: values.collect(), channel: channel.map(str::to_owned), source: None };
    fleet.call(set).await.expect("set");
}

/// A poll that accepts mentions and wake-ups.
fn poll(agent: &str, run: &str) -> agent::Poll {
    let accept = Some(vec![agent::Type::UnreadMentions, agent::Type::UnreadWakeup]);
    agent::Poll {
        agent: agent.into(),
        run: run.into(),
        accept,
        ttl_ms: Some(Millis::minutes(10)),
        ..Default::default()
    }
}

fn settle(run: &str) -> run::Settle {
    run::Settle { run: run.into(), ..Default::default() }
}
