//! Wake-ups for unread posts, and the limits that keep agents from waking each other without end.

use fencepost::{Code, Fleet, Millis, agent, channel, inbox, run, storm, task};
use fencepost_testing::{World, on_both, world::code};
use futures_util::future::join_all;
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

/// Ticks until there is no more to look at. On PostgreSQL a tick gives up if it waits for a lock too long.
async fn tick(fleet: &Fleet) -> storm::tick::Ticked {
    let mut all = storm::tick::Ticked { more: true, ..Default::default() };
    while all.more {
        match fleet.call(storm::Tick {}).await {
            Ok(ticked) => all = all.and(ticked),
            Err(error) => assert_eq!(error.code(), Code::Unavailable, "{error:?}"),
        }
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

    /// An agent that is offline, or whose polls do not accept wake-ups, gets none until it polls for them.
    async fn offline_agents_are_not_woken(world: World) {
        general(&world).await;
        world.story("
            +301s agent/poll ann run=a1 accept=unread_wakeup -> trigger=none
            channel/post general body=hello author=eve -> post.n=1
            storm/tick                                 -> scheduled=1 pending_jobs=1
            storm/why channel=general agent=bob        -> state=suppressed why=offline online=false
            agent/poll bob run=b0                      -> trigger=none
            storm/due                                  -> due=false
            storm/why channel=general agent=bob        -> state=suppressed why=not_accepted online=true
            agent/poll bob run=b1 accept=unread_wakeup -> trigger=none
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
            agent/poll bob run=b0 accept=unread_wakeup -> trigger=none
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
            agent/join kim                             -> agent.online=true
            channel/post general body=x author=ann     -> post.n=2
            storm/tick                                 -> breaker_open=true scheduled=0
            storm/breaker state=open for_ms=60000      -> open=true
            +60s storm/tick                            -> scheduled=1
            storm/breaker state=open                   -> open=true open_until=none
            +600s storm/tick                           -> breaker_open=true
            storm/breaker state=close                  -> open=false
        ").await;
        assert!(world.times("storm.breaker_opened").await >= 4);
    }

    /// Pairs that a breaker held back are woken when a person closes it, without a new post.
    async fn closing_the_breaker_forgets_nobody(world: World) {
        general(&world).await;
        world.story("
            storm/breaker state=open               -> open=true
            channel/post general body=x author=ann -> post.n=1
            storm/tick                             -> scheduled=0 suppressed_breaker=2
            +59s storm/due                         -> due=false
            +1s storm/tick                         -> scheduled=0 suppressed_breaker=2
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
            storm/tick                             -> pending_jobs=0
            agent/poll bob run=b2 accept=unread_wakeup -> type=unread_wakeup
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

    /// A wake-up whose worker was lost goes on where it was, and the lost worker is refused.
    async fn a_lost_wake_up_is_reclaimed(world: World) {
        general(&world).await;
        world.story("
            channel/leave general agent=eve                -> channel=general
            channel/post general body=x author=ann         -> post.n=1
            storm/tick                                     -> scheduled=1
            agent/poll bob run=b1 accept=unread_wakeup     -> wakeup.attempt=1 wakeup.reclaimed=none
            agent/poll bob run=b1 accept=unread_wakeup     -> wakeup.attempt=1 channels=general:1-1
            +60s agent/poll bob run=b2 accept=unread_wakeup -> wakeup.attempt=2 wakeup.reclaimed=timeout
            storm/why channel=general agent=bob            -> state=running run=b2 reclaimed=timeout
            run/settle b1                                  -> refused lease_expired
            mail/checkpoint message/1@1 ordinal=1 phase=delivered -> refused lease_expired
            mail/checkpoint message/1@2 ordinal=1 phase=delivered data=result -> checkpoint.phase=delivered
            +60s agent/poll bob run=b3 accept=unread_wakeup -> wakeup.reclaimed=callback_retry wakeup.delivered=result
            agent/poll bob run=b3 accept=unread_wakeup     -> wakeup.reclaimed=callback_retry wakeup.delivered=result
            run/settle b2                                  -> refused lease_expired
            run/settle b3                                  -> settled=message/1@3,mentions/bob/general@3
            storm/tick                                     -> reclaimed=2
            channel/unread bob                             -> channels=none
        ").await;
        assert_eq!(world.times("wakeup.reclaimed").await, 2);
    }

    /// Past its last attempt a wake-up fails. Its posts stay unread, and the next post brings them.
    async fn a_poison_wake_up_fails(world: World) {
        general(&world).await;
        world.story("
            channel/leave general agent=eve                -> channel=general
            channel/post general body=x author=ann         -> post.n=1
            storm/tick                                     -> scheduled=1
            agent/poll bob run=b1 accept=unread_wakeup     -> wakeup.attempt=1
            +60s agent/poll bob run=b2 accept=unread_wakeup -> wakeup.attempt=2
            +60s agent/poll bob run=b3 accept=unread_wakeup -> wakeup.attempt=3
            +60s agent/poll bob run=b4 accept=unread_wakeup -> trigger=none
            +60s storm/tick                                -> scheduled=0 pending_jobs=0
            storm/why channel=general agent=bob            -> state=nothing
            channel/post general body=y author=ann         -> post.n=2
            storm/tick                                     -> scheduled=1
            agent/poll bob run=b5 accept=unread_wakeup     -> channels=general:1-2
        ").await;
    }

    /// A wake-up whose reply did not arrive is given back, with the posts.
    async fn an_undelivered_wake_up_comes_back(world: World) {
        general(&world).await;
        channel_post(&world.fleet, "general", "ann", "x").await;
        tick(&world.fleet).await;
        let (polled, delivery) = world.fleet.deliver(poll("bob", "b1")).await.expect("a trigger");
        assert!(polled.trigger.is_some());
        assert_eq!(delivery.undelivered().await.expect("given back"), 2);
        world.story("agent/poll bob run=b2 accept=unread_wakeup -> wakeup.attempt=1 channels=general:1-1").await;
    }

    /// Ann wakes bob, who wakes ann, and so on: the chain ends at the bound, and its cycle is named.
    async fn a_chain_of_mentions_ends(world: World) {
        general(&world).await;
        set(&world.fleet, None, &[("max_depth", Some(3)), ("enabled", Some(0))]).await;
        channel_post(&world.fleet, "general", "person", "@ann go").await;
        for (n, (agent, other)) in [("ann", "bob"), ("bob", "ann"), ("ann", "bob")].into_iter().enumerate() {
            let run = format!("r{n}");
            let trigger = world.fleet.call(poll(agent, &run)).await.unwrap().trigger;
            assert!(trigger.is_some(), "run {n}");
            let inside = world.fleet.as_agent(agent).in_run(&run);
            channel_post(&inside, "general", agent, &format!("@{other} your turn")).await;
            world.fleet.call(settle(&run)).await.unwrap();
        }
        world.story("
            agent/poll bob run=b4 accept=unread_mentions -> trigger=none
            agent/poll bob run=b5 accept=unread_mentions -> trigger=none
        ").await;
        let tree = world.fleet.call(storm::Cause { id: "run/r2".into() }).await.unwrap();
        assert_eq!(tree.root, "post/general/1");
        let ids: Vec<&str> = tree.nodes.iter().map(|node| node.id.as_str()).collect();
        let chain = "post/general/1 run/r0 post/general/2 run/r1 post/general/3 run/r2 post/general/4";
        assert_eq!(ids.join(" "), chain);
        assert_eq!(tree.cycles, ["ann → bob → ann"]);
        let shown = world.fleet.call(storm::Show::default()).await.unwrap();
        assert_eq!(shown.counts["suppressed_cause"], 1);
        assert!(shown.alarms[0].message.contains("ann → bob → ann"), "{:?}", shown.alarms);
        // A person's mention starts a new chain, and brings the unread posts.
        channel_post(&world.fleet, "general", "person", "@bob go").await;
        let trigger = world.fleet.call(poll("bob", "b6")).await.unwrap().trigger.expect("a trigger");
        assert_eq!((trigger.channels[0].from, trigger.channels[0].to), (3, 5));
    }

    /// The runs of one root are bounded in a window. Tasks are never held back.
    async fn a_root_triggers_a_bounded_number_of_runs(world: World) {
        general(&world).await;
        set(&world.fleet, None, &[("max_fanout", Some(2))]).await;
        world.story("
            channel/post general body=@ann_@bob_@eve mentions=ann,bob,eve author=person -> post.n=1
            agent/poll ann run=a1                        -> type=unread_mentions
            agent/poll bob run=b1                        -> type=unread_mentions
            agent/poll eve run=e1                        -> trigger=none
            add mine to=eve                              -> auth-1
            agent/poll eve run=e2                        -> type=task_assigned
            storm/tick                                   -> scheduled=0 suppressed_cause=1
            storm/why channel=general agent=eve          -> why=fanout until=2026-01-01T12:05:00.000Z
            run/settle a1                                -> run.alive=false
            run/settle b1                                -> run.alive=false
        ").await;
        world.pass(299);
        assert_eq!(tick(&world.fleet).await.scheduled, 0);
        world.story("+1s agent/poll eve run=e3 accept=unread_wakeup -> trigger=none").await;
        // The window is over: the posts that were held back wake it now.
        assert_eq!(tick(&world.fleet).await.scheduled, 1);
        world.story("agent/poll eve run=e4 accept=unread_wakeup -> type=unread_wakeup channels=general:1-1").await;
    }

    /// Wake-ups that wait count for their root, and those that it could not have come when the window is over.
    async fn waiting_wake_ups_count_for_their_root(world: World) {
        general(&world).await;
        set(&world.fleet, None, &[("max_fanout", Some(1))]).await;
        world.story("
            channel/post general body=x author=ann         -> post.n=1
            storm/tick                                     -> scheduled=1 suppressed_cause=1
            +299s agent/poll bob run=b1 accept=unread_wakeup ttl_ms=600000 -> type=unread_wakeup
            agent/poll eve run=e1 accept=unread_wakeup     -> trigger=none
            +1s storm/tick                                 -> scheduled=0 suppressed_cause=1
            +299s agent/poll eve run=e2 accept=unread_wakeup -> trigger=none
            storm/tick                                     -> scheduled=1
            agent/poll eve run=e3 accept=unread_wakeup     -> type=unread_wakeup
        ").await;
    }

    /// An agent that joins a channel is woken for the posts that it has not read, also if it was a member before.
    async fn a_new_member_is_woken(world: World) {
        general(&world).await;
        world.story("
            channel/leave general agent=eve                -> channel=general
            channel/leave general agent=bob                -> channel=general
            channel/post general body=x author=ann         -> post.n=1
            storm/tick                                     -> scheduled=0
            channel/join general agent=bob                 -> channel=general
            storm/tick                                     -> scheduled=1
            agent/poll bob run=b1 accept=unread_wakeup     -> channels=general:1-1
            channel/read general agent=eve limit=1         -> cursor=1
            storm/tick                                     -> scheduled=0
        ").await;
    }

    /// No mailbox can have the name of such an agent. It stops nobody else.
    async fn a_name_that_is_too_long_stops_nobody(world: World) {
        general(&world).await;
        let long = "a".repeat(128);
        world.join(&long, agent::Role::Worker).await;
        let join = channel::Join { channel: "general".into(), agent: long.clone() };
        world.fleet.call(join).await.unwrap();
        channel_post(&world.fleet, "general", "ann", "x").await;
        assert_eq!(tick(&world.fleet).await.scheduled, 2);
        let why = world.fleet.call(storm::Why { channel: "general".into(), agent: long }).await.unwrap();
        assert_eq!(why.why, Some(storm::WhyNot::NotAccepted));
    }

    /// Only the run that has a wake-up may use the keys of its answers: nobody can take the place of a result.
    async fn the_key_of_an_answer_is_reserved(world: World) {
        general(&world).await;
        channel_post(&world.fleet, "general", "ann", "x").await;
        tick(&world.fleet).await;
        let trigger = world.fleet.call(poll("bob", "b1")).await.unwrap().trigger.expect("a trigger");
        let answer = |author: &str| channel::Post {
            channel: "general".into(),
            body: "y".into(),
            author: Some(author.into()),
            key: trigger.wakeup.as_ref().map(|wakeup| format!("wakeup/{}", wakeup.message)),
            ..Default::default()
        };
        let refused = world.fleet.call(answer("eve")).await.unwrap_err();
        assert_eq!(refused.code(), Code::LeaseExpired);
        assert_eq!(code(world.fleet.in_run("e1").call(answer("eve")).await), Code::LeaseExpired);
        let posted = world.fleet.in_run("b1").call(answer("bob")).await.unwrap();
        assert!(!posted.existing);
        assert!(world.fleet.in_run("b1").call(answer("bob")).await.unwrap().existing);
        world.fleet.call(settle("b1")).await.unwrap();
        assert_eq!(code(world.fleet.in_run("b1").call(answer("bob")).await), Code::LeaseExpired);
    }

    /// The caller's run is believed only if it is the caller's own.
    async fn a_run_of_somebody_else_is_no_cause(world: World) {
        general(&world).await;
        channel_post(&world.fleet, "general", "person", "@ann go").await;
        world.fleet.call(poll("ann", "a1")).await.unwrap().trigger.expect("a trigger");
        let root_of = async |n: i64| {
            let id = format!("post/general/{n}");
            world.fleet.call(storm::Cause { id }).await.unwrap().root
        };
        let own = channel_post(&world.fleet.in_run("a1"), "general", "ann", "mine").await;
        assert_eq!(root_of(own).await, "post/general/1");
        let foreign = channel_post(&world.fleet.in_run("a1"), "general", "bob", "not mine").await;
        assert_eq!(root_of(foreign).await, format!("post/general/{foreign}"));
        let unknown = channel_post(&world.fleet.in_run("no/such"), "general", "ann", "x").await;
        assert_eq!(root_of(unknown).await, format!("post/general/{unknown}"));
        let secret = world.call("key/add", &json!({ "name": "bob", "role": "agent", "agent": "bob" })).await.unwrap();
        let key = world.fleet.key(secret["secret"].as_str().unwrap()).await.unwrap().expect("a key");
        let keyed = channel_post(&world.fleet.as_key(&key).in_run("a1"), "general", "bob", "x").await;
        assert_eq!(root_of(keyed).await, format!("post/general/{keyed}"));
        world.fleet.call(settle("a1")).await.unwrap();
        let late = channel_post(&world.fleet.in_run("a1"), "general", "ann", "late").await;
        assert_eq!(root_of(late).await, "post/general/1");
    }

    /// Tasks and messages have causes, too, and the chain goes on through them.
    async fn causes_go_through_tasks_and_messages(world: World) {
        general(&world).await;
        channel_post(&world.fleet, "general", "person", "@ann go").await;
        world.fleet.call(poll("ann", "a1")).await.unwrap().trigger.expect("a trigger");
        let inside = world.fleet.as_agent("ann").in_run("a1");
        inside.call(task::Add { to: Some("bob".into()), ..task::Add::new("auth", "mine") }).await.unwrap();
        inside.call(inbox::Send { agent: "eve".into(), text: "hi".into(), ..Default::default() }).await.unwrap();
        world.story("
            agent/poll bob run=b1 -> type=task_assigned
            agent/poll eve run=e1 -> type=inbox_message
        ").await;
        let inside = world.fleet.as_agent("bob").in_run("b1");
        channel_post(&inside, "general", "bob", "done").await;
        let tree = world.fleet.call(storm::Cause { id: "task/auth-1".into() }).await.unwrap();
        let nodes: Vec<String> = tree.nodes.iter().map(|node| format!("{}{}", node.depth, node.id)).collect();
        assert_eq!(
            nodes.join(" "),
            "0post/general/1 1run/a1 1message/1 1run/e1 1task/auth-1 1run/b1 1post/general/2"
        );
    }

    async fn settings_are_the_fleets(world: World) {
        general(&world).await;
        let other = world.again().await;
        set(&other, None, &[("window_ms", Some(600_000))]).await;
        set(&other, Some("general"), &[("max_triggers_per_window", Some(1)), ("enabled", Some(0))]).await;
        let environment = storm::Environment {
            server: "one:1".into(),
            values: [(storm::Setting::WindowMs, 1000)].into(),
            start: true,
            stop: false,
        };
        world.fleet.call(environment.clone()).await.unwrap();
        let second = storm::Environment {
            server: "two:2".into(),
            values: [(storm::Setting::WindowMs, 2000)].into(),
            ..environment.clone()
        };
        world.fleet.call(second.clone()).await.unwrap();
        let shown = other.call(storm::Show::default()).await.unwrap();
        let of = |name: storm::Setting, channel: Option<&str>| {
            let found = shown.settings.iter().find(|view| view.name == name && view.channel.as_deref() == channel);
            found.map(|view| (view.value, view.source.as_str()))
        };
        assert_eq!(of(storm::Setting::WindowMs, None), Some((2000, "environment of server two:2")));
        assert_eq!(of(storm::Setting::MaxTriggersPerWindow, Some("general")), Some((1, "call")));
        assert_eq!(of(storm::Setting::MaxDepth, None), Some((20, "default")));
        let differs: Vec<_> = shown.servers.iter().map(|s| (s.server.as_str(), s.value, s.fleet)).collect();
        assert_eq!(differs, [("one:1", 1000, 2000)]);
        // A server that is gone is forgotten.
        world.pass(240);
        world.fleet.call(storm::Environment { start: false, ..second }).await.unwrap();
        world.pass(61);
        assert_eq!(other.call(storm::Show::default()).await.unwrap().servers, []);
        world.story("
            storm/set values=1                         -> refused invalid
            channel/post general body=x author=ann     -> post.n=1
            agent/poll bob run=b0 accept=unread_wakeup -> trigger=none
            storm/tick                                 -> scheduled=0
            storm/why channel=general agent=bob        -> why=disabled
        ").await;
        let wrong = storm::Set {
            values: [(storm::Setting::MaxDepth, Some(2))].into(),
            channel: Some("general".into()),
            source: None,
        };
        assert_eq!(world.fleet.call(wrong).await.unwrap_err().code(), Code::Invalid);
        set(&world.fleet, Some("general"), &[("enabled", None)]).await;
        assert_eq!(tick(&world.fleet).await.scheduled, 1);
    }

    /// Work is ready, an agent is online, and nothing is picked up for five minutes.
    async fn ignored_work_is_an_alarm(world: World) {
        world.story("
            agent/join ann                              -> agent.online=true
            add one                                     -> auth-1
            storm/tick                                  -> scheduled=0
            storm/due                                   -> due=false
            +200s agent/poll ann run=a1 accept=inbox_message -> trigger=none
            +99s storm/due                              -> due=false
            +1s storm/due                               -> due=true
            storm/tick                                  -> scheduled=0
            storm/due                                   -> due=false
        ").await;
        let shown = world.fleet.call(storm::Show::default()).await.unwrap();
        assert_eq!(shown.alarms.len(), 1);
        assert!(shown.alarms[0].message.starts_with("task/auth-1 is ready and agent `ann` is online"), "{shown:?}");
        world.story("
            agent/poll ann run=a2                       -> type=pool_task
            storm/due                                   -> due=true
            storm/tick                                  -> scheduled=0
        ").await;
        assert_eq!(world.fleet.call(storm::Show::default()).await.unwrap().alarms, []);
        assert_eq!((world.times("storm.alarm").await, world.times("storm.alarm_over").await), (1, 1));
    }

    /// An agent that leaves a channel is woken no more.
    async fn an_agent_that_left_is_not_woken(world: World) {
        general(&world).await;
        world.story("
            channel/post general body=x author=ann     -> post.n=1
            storm/tick                                 -> scheduled=2 pending_jobs=2
            channel/leave general agent=bob            -> channel=general
            agent/poll bob run=b1 accept=unread_wakeup -> trigger=none
            channel/leave general agent=eve            -> channel=general
            channel/post general body=x author=ann     -> post.n=2
            storm/tick                                 -> scheduled=0 pending_jobs=0
            storm/why channel=general agent=eve        -> member=false state=nothing
        ").await;
    }

    /// Posts, polls, reads, settlements and ticks at the same time: nobody is woken twice, and nothing is lost.
    async fn everything_at_once(world: World) {
        general(&world).await;
        let limits = [("min_interval_ms", Some(0)), ("max_triggers_per_window", Some(1000)), ("max_fanout", Some(100_000)), ("max_depth", Some(1_000_000))];
        set(&world.fleet, None, &limits).await;
        let fleets = [world.fleet.clone(), world.again().await];
        let agents = ["ann", "bob", "eve"];
        let mut tasks = Vec::new();
        for (i, agent) in agents.into_iter().enumerate() {
            let fleet = fleets[i % 2].as_agent(agent);
            tasks.push(tokio::spawn(async move {
                for n in 0..20 {
                    let run = format!("{agent}-{n}");
                    let polled = fleet.call(poll(agent, &run)).await.expect("a poll");
                    let other = agents[(i + n) % 3];
                    let body = if n % 2 == 0 { format!("@{other} {n}") } else { n.to_string() };
                    channel_post(&fleet.in_run(&run), "general", agent, &body).await;
                    if polled.trigger.is_some() {
                        fleet.call(settle(&run)).await.expect("settled");
                    } else if n % 5 == 4 {
                        let read = channel::Read { channel: "general".into(), agent: agent.into(), ..Default::default() };
                        fleet.call(read).await.expect("a page");
                    }
                }
            }));
        }
        for fleet in fleets {
            tasks.push(tokio::spawn(async move {
                for _ in 0..30 {
                    tick(&fleet).await;
                }
            }));
        }
        for done in join_all(tasks).await {
            done.expect("no call fails");
        }
        // What is still unread reaches everybody.
        for round in 0..100 {
            tick(&world.fleet).await;
            let mut triggers = 0;
            for agent in agents {
                let run = format!("{agent}-end-{round}");
                if world.fleet.call(poll(agent, &run)).await.expect("a poll").trigger.is_some() {
                    triggers += 1;
                    world.fleet.call(settle(&run)).await.expect("settled");
                }
            }
            if triggers == 0 {
                break;
            }
        }
        for agent in agents {
            let unread = world.fleet.call(channel::Unread { agent: agent.into() }).await.unwrap();
            let others = unread.channels.iter().map(|unread| unread.mentions).sum::<i64>();
            assert_eq!(others, 0, "{agent}: {unread:?}");
            let why = storm::Why { channel: "general".into(), agent: agent.into() };
            let why = world.fleet.call(why).await.unwrap();
            assert_eq!(why.state, storm::why::WakeState::Nothing, "{why:?}");
        }
    }

    /// Two processes that schedule at the same time schedule each pair once.
    async fn two_schedulers_never_schedule_twice(world: World) {
        let others = [world.again().await, world.again().await];
        for n in 0..20 {
            world.story(&format!("
                agent/join a{n}                   -> agent.online=true
                channel/create c{n}               -> existing=false
                channel/join c{n} agent=a{n}      -> channel=c{n}
                channel/post c{n} body=x author=p -> post.n=1
            ")).await;
        }
        let ticks = (0..10).map(|n| {
            let fleet = others[n % 2].clone();
            tokio::spawn(async move { tick(&fleet).await.scheduled })
        });
        let scheduled: i64 = join_all(ticks).await.into_iter().map(|ticked| ticked.expect("a tick")).sum();
        assert_eq!((scheduled, world.times("message.pushed").await), (20, 20));
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
