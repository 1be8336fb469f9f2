//! Polls: access, cost, waiting, lost replies and races.

use crate::{
    large_tables::rows_read,
    open_transactions::{meet, run_to_commit, start},
};
use fencepost::{Access, Code, Fleet, Millis, agent, channel, inbox, key, params, run, task};
use fencepost_testing::{PATIENCE, World, on_both, world::code};
use std::time::Duration;
use tokio::task::JoinHandle;

fn poll(agent: &str, run: &str) -> agent::Poll {
    agent::Poll { agent: agent.into(), run: run.into(), ..Default::default() }
}

fn settle(run: &str) -> run::Settle {
    run::Settle { run: run.into(), ..Default::default() }
}

fn post(channel: &str, body: &str) -> channel::Post {
    channel::Post { channel: channel.into(), body: body.into(), ..Default::default() }
}

fn read(agent: &str, token: Option<&str>) -> channel::Read {
    channel::Read {
        channel: "c".into(),
        agent: agent.into(),
        token: token.map(str::to_owned),
        ..Default::default()
    }
}

async fn as_agent_key(fleet: &Fleet, agent: &str) -> Fleet {
    let secret = fleet.call(key::Add::new(agent, Access::Agent)).await.unwrap().secret;
    fleet.as_key(&fleet.key(&secret).await.unwrap().expect("it was just added"))
}

/// Starts a poll, and returns when it waits.
async fn parked(world: &World, agent: &str) -> JoinHandle<Option<agent::Trigger>> {
    let (fleet, before) = (world.fleet.clone(), world.fleet.stats().waiting);
    let run = format!("parked-{}", fastrand::u64(..));
    let poll = agent::Poll { wait_ms: Some(Millis::minutes(10)), ..poll(agent, &run) };
    let polled = tokio::spawn(async move { fleet.call(poll).await.unwrap().trigger });
    let parks = async {
        while world.fleet.stats().waiting <= before {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, parks).await.expect("it waits");
    polled
}

async fn woken(polled: JoinHandle<Option<agent::Trigger>>) -> String {
    let trigger =
        tokio::time::timeout(PATIENCE, polled).await.expect("it is woken").unwrap().expect("a trigger");
    trigger.claims[0].token.clone()
}

on_both! {
    /// More runs have lapsed than one call ends. An agent's own may be among the rest, and must not count against its limit.
    async fn lapsed_runs_do_not_count_against_the_limit(world: World) {
        for n in 0..66 {
            let agent = format!("a{n}");
            let join = agent::Join { agent: agent.clone(), max_concurrent: Some(1), ..Default::default() };
            world.fleet.call(join).await.unwrap();
            world.fleet.call(task::Add::new("auth", "a task")).await.unwrap();
            assert!(world.fleet.call(poll(&agent, &format!("r{n}"))).await.unwrap().trigger.is_some());
            world.clock.advance(Duration::from_millis(1));
        }
        world.clock.advance(Duration::from_secs(61));
        let polled = world.fleet.call(poll("a65", "again")).await.unwrap();
        assert!(polled.trigger.is_some() && polled.held_back.is_none(), "{polled:?}");
    }

    async fn an_agents_key_acts_for_its_agent_alone(world: World) {
        world.story("
            agent/join bob                                -> agent.name=bob
            agent/join eve                                -> agent.name=eve
            add mine to=bob                               -> auth-1
            inbox/send bob text=one                       -> item.id=1
            inbox/send bob text=two                       -> item.id=2
            channel/create c                              -> existing=false
            channel/post c body=@bob author=x             -> post.n=1
            agent/poll bob run=b1                         -> claims=task/auth-1@1
            agent/poll bob run=b2 accept=unread_mentions  -> claims=mentions/bob/c@1
        ").await;
        let eve = as_agent_key(&world.fleet, "eve").await;
        let door = |op: &'static str, request: serde_json::Value| {
            let eve = eve.clone();
            async move { fencepost::op::find(op).unwrap().call(&eve, &request.to_string()).await }
        };
        let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        for (op, request) in [
            ("agent/poll", r#"{"agent": "bob", "run": "e"}"#),
            ("agent/poll", r#"{"agent": "bob", "run": "e", "accept": []}"#),
            ("agent/poll", r#"{"agent": "bob", "run": "b1"}"#),
            // A run of another agent.
            ("agent/poll", r#"{"agent": "eve", "run": "b1"}"#),
            ("agent/join", r#"{"agent": "bob"}"#),
            ("agent/leave", r#"{"agent": "bob"}"#),
            ("run/settle", r#"{"run": "b1"}"#),
            ("run/end", r#"{"run": "b1"}"#),
            ("inbox/read", r#"{"message": "1"}"#),
            ("inbox/respond", r#"{"message": "1", "text": "x"}"#),
            ("inbox/delegate", r#"{"message": "1"}"#),
            ("mail/claim", r#"{"mailboxes": ["inbox/bob"], "run": "e"}"#),
            ("mail/take", r#"{"mailboxes": ["mine", "inbox/bob"]}"#),
            ("channel/post", r#"{"channel": "c", "body": "x", "author": "bob"}"#),
            ("channel/read", r#"{"channel": "c", "agent": "bob"}"#),
            ("channel/read", r#"{"channel": "c", "agent": "bob", "token": "mentions/bob/c@1"}"#),
            ("channel/join", r#"{"channel": "c", "agent": "bob"}"#),
            ("claim/release", r#"{"token": "mentions/bob/c@1"}"#),
            ("task/done", r#"{"token": "task/auth-1@1"}"#),
        ] {
            assert_eq!(code(door(op, json(request)).await), Code::Forbidden, "{op} {request}");
        }
        let posted = eve.call(post("c", "@eve @bob")).await.unwrap().post;
        assert_eq!((posted.author.as_deref(), posted.mentions), (Some("eve"), vec!["bob".to_owned()]));
        world.story("
            agent/poll bob run=b3                         -> claims=message/1@1,message/2@1
            run/settle b1                                 -> settled=task/auth-1@1
            run/settle b2                                 -> settled=mentions/bob/c@1
            agent/poll bob run=b4                         -> channels=c:2-2
        ").await;
    }

    /// A change of its agent wakes a waiting poll.
    async fn a_waiting_poll_notices_changes_of_its_agent(world: World) {
        world.story("
            agent/join a capabilities=go              -> agent.name=a
            agent/join b role=lead                    -> agent.name=b
            agent/join c max_concurrent=1             -> agent.name=c
            add rust tags=rust                        -> auth-1
            add mine to=c                             -> auth-2
            add mine to=c                             -> auth-3
            add mine to=c                             -> auth-4
            agent/poll c run=c1                       -> claims=task/auth-2@1
        ").await;
        let polled = parked(&world, "a").await;
        world.story("agent/join a capabilities=go,rust -> agent.name=a").await;
        assert_eq!(woken(polled).await, "task/auth-1@1");

        let polled = parked(&world, "b").await;
        world.story("
            add pool                                  -> auth-5
            agent/join b role=worker                  -> agent.role=worker
        ").await;
        assert_eq!(woken(polled).await, "task/auth-5@1");

        let polled = parked(&world, "c").await;
        world.story("agent/join c max_concurrent=2 -> agent.name=c").await;
        assert_eq!(woken(polled).await, "task/auth-3@1");
        let polled = parked(&world, "c").await;
        world.story("run/settle c1 -> run.alive=false").await;
        assert_eq!(woken(polled).await, "task/auth-4@1");

        // A worker has nothing to do; a lead has a notice.
        let polled = parked(&world, "b").await;
        world.story("agent/join b role=lead -> agent.role=lead").await;
        assert_eq!(woken(polled).await, "message/1@1");

        world.story("
            agent/join d                              -> agent.name=d
            mail/configure inbox/d max_attempts=5     -> mailbox.name=inbox/d
            mail/pause inbox/d reason=x               -> mailbox.name=inbox/d
            inbox/send d text=x                       -> item.status=unread
        ").await;
        let polled = parked(&world, "d").await;
        world.story("mail/resume inbox/d -> mailbox.name=inbox/d").await;
        assert_eq!(woken(polled).await, "message/2@1");
    }

    /// A trigger whose reply did not arrive is given back, for every kind of trigger.
    async fn an_undelivered_trigger_goes_back(world: World) {
        world.story("
            agent/join bob max_concurrent=1             -> agent.name=bob
            agent/join lead role=lead                   -> agent.name=lead
            add done                                    -> auth-1
            claim auth-1 run=w                          -> task/auth-1@1
            done task/auth-1@1                          -> completed
            add maybe offer=bob                         -> auth-2
            add mine to=bob                             -> auth-3
            add pool                                    -> auth-4
            inbox/send bob text=x                       -> item.id=1
            inbox/send bob text=y                       -> item.id=2
            channel/create c                            -> existing=false
            channel/create d                            -> existing=false
            channel/post c body=@bob                    -> post.n=1
            channel/post d body=@bob                    -> post.n=1
        ").await;
        let other = world.again().await;
        for (kind, agent, items) in [
            (agent::Type::TasksFinished, "lead", 1),
            (agent::Type::TaskOffered, "bob", 1),
            (agent::Type::TaskAssigned, "bob", 1),
            (agent::Type::InboxMessage, "bob", 2),
            (agent::Type::UnreadMentions, "bob", 2),
            (agent::Type::PoolTask, "bob", 1),
        ] {
            let run = kind.as_str();
            let poll = agent::Poll { accept: Some(vec![kind]), ..poll(agent, run) };
            let (lost, delivery) = world.fleet.deliver(poll.clone()).await.unwrap();
            assert_eq!(delivery.undelivered().await.unwrap(), items, "{kind:?}");
            assert_eq!(code(world.fleet.call(settle(run)).await), Code::LeaseExpired);
            // After a repeated poll, also through another fleet, only the latest delivery counts.
            let (again, first) = world.fleet.deliver(poll.clone()).await.unwrap();
            let (_, second) = other.deliver(poll.clone()).await.unwrap();
            let (lost, again) = (lost.trigger.unwrap(), again.trigger.unwrap());
            assert_eq!(again.claims.len(), lost.claims.len());
            assert!(again.claims.iter().zip(&lost.claims).all(|(new, old)| new.resource == old.resource && new.fence > old.fence));
            assert_eq!(first.undelivered().await.unwrap(), 0, "{kind:?}: it was handed over since");
            second.delivered();
            assert_eq!(world.fleet.call(poll.clone()).await.unwrap().trigger.unwrap().claims, again.claims);
            world.fleet.call(settle(run)).await.unwrap();
            assert_eq!(code(world.fleet.call(poll).await), Code::LeaseExpired);
        }
        assert_eq!(world.show("auth-4").await.attempts, 1, "what was not delivered is no attempt");
    }

    /// The search skips tasks with tags that the worker does not have, and tags that only begin like its own.
    async fn a_worker_finds_its_task_among_many_that_do_not_fit(world: World) {
        let lists = |i: usize| match i % 3 {
            0 => vec!["go".to_owned(), format!("u{i}")],
            1 => vec![format!("u{i}")],
            _ => vec!["rust".to_owned(), "go".to_owned(), "zig".to_owned()],
        };
        let plan = |from: usize| task::Plan {
            board: Some("many".into()),
            tasks: (from..from + 1000)
                .map(|i| task::plan::Item { title: "x".into(), tags: lists(i), priority: Some(90), ..Default::default() })
                .collect(),
            request: None,
        };
        for from in [0, 1000, 2000, 3000] {
            world.fleet.call(plan(from)).await.unwrap();
        }
        world.story("
            agent/join rust capabilities=go,rust   -> agent.name=rust
            agent/join none capabilities=cobol     -> agent.name=none
            agent/join any                         -> agent.name=any
            agent/poll rust run=r0                 -> trigger=none
            add both tags=rust,go priority=10      -> auth-1
            add other-way tags=go,rust priority=20 -> auth-2
            add go tags=go priority=10             -> auth-3
        ").await;
        if world.is_postgres() {
            let read = world.fleet.transaction(|tx| Box::pin(async move {
                tx.execute("analyze task", params![]).await?;
                let before = rows_read(tx).await?;
                let polled = tx.call(poll("rust", "r1")).await?;
                Ok((polled, rows_read(tx).await? - before))
            }));
            let (polled, rows) = read.await.unwrap();
            assert_eq!(polled.trigger.unwrap().claims[0].token, "task/auth-2@1");
            assert!(rows < 100, "{rows} rows were read to find one task");
        } else {
            world.story("agent/poll rust run=r1 -> claims=task/auth-2@1").await;
        }
        world.story("
            agent/poll rust run=r2 tag=rust        -> claims=task/auth-1@1
            agent/poll rust run=r3 tag=rust        -> trigger=none
            agent/poll rust run=r4                 -> claims=task/auth-3@1
            agent/poll rust run=r5                 -> trigger=none
            agent/poll none run=n1                 -> trigger=none
            agent/poll any run=a1 tag=u1           -> claims=task/many-2@1
            agent/poll any run=a2                  -> claims=task/many-1@1
        ").await;
    }

    /// A kind of trigger that has waited too long goes first, whatever the order.
    async fn nothing_starves(world: World) {
        world.story("
            agent/join bob                           -> agent.name=bob
            channel/create c                         -> existing=false
            add pool                                 -> auth-1
            +1s channel/post c body=@bob author=x    -> post.n=1
            +1s inbox/send bob text=x                -> item.id=1
            +1s add mine to=bob                      -> auth-2
            +1s add maybe offer=bob                  -> auth-3
            agent/poll bob run=b1 stale_ms=10000     -> type=task_offered
            run/settle b1 outcome=released           -> run.alive=false
            +6s agent/poll bob run=b2 stale_ms=10000 -> type=pool_task
            agent/poll bob run=b3 stale_ms=10000     -> type=task_offered
            +1s agent/poll bob run=b4 stale_ms=8000  -> type=unread_mentions
            agent/poll bob run=b5 stale_ms=9000      -> type=task_assigned
            agent/poll bob run=b6 stale_ms=9000      -> type=inbox_message
        ").await;
    }

    /// A clock that is set back lengthens no lease, and hands out no trigger twice.
    async fn a_clock_set_back_lengthens_no_lease(world: World) {
        world.story("
            agent/join bob                           -> agent.online=true
            inbox/send bob text=x                    -> item.id=1
            agent/poll bob run=b1                    -> claims=message/1@1
            +30s agent/poll bob run=b1               -> claims=message/1@1
        ").await;
        world.clock.set_back(Duration::from_secs(3600));
        world.story("
            agent/poll bob run=b2                    -> trigger=none
            +61s agent/poll bob run=b3               -> claims=message/1@2
            run/settle b1                            -> refused lease_expired
            run/settle b3                            -> settled=message/1@2
        ").await;
        world.clock.advance(Duration::from_secs(400 * 24 * 3600));
        world.story("
            agent/poll bob run=b4                    -> trigger=none
            inbox/send bob text=y                    -> item.id=2
            agent/poll bob run=b5                    -> claims=message/2@1
        ").await;
    }
}

/// Most polls are empty, and an empty poll does not wait for a writer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_poll_does_not_touch_sqlites_writer() {
    let world = World::sqlite().await;
    world
        .story(
            "
            agent/join bob max_concurrent=1 -> agent.name=bob
            agent/join eve capabilities=go  -> agent.name=eve
            agent/join lead role=lead       -> agent.name=lead
            add pool tags=rust              -> auth-1
            agent/poll bob run=b1           -> type=pool_task
            add pool tags=rust              -> auth-2
        ",
        )
        .await;
    let file = rusqlite::Connection::open(&world.url).unwrap();
    file.execute_batch("begin immediate").unwrap();
    for agent in ["bob", "eve", "lead"] {
        let polled = tokio::time::timeout(PATIENCE, world.fleet.call(poll(agent, "r"))).await;
        assert_eq!(polled.expect("it answers at once").unwrap().trigger, None, "{agent}");
    }
    // A poll that takes something does wait.
    let writes = start(&world.fleet, agent::Poll { tag: Some("rust".into()), ..poll("eve", "e") });
    let waits =
        start(&world.fleet, inbox::Send { agent: "eve".into(), text: "x".into(), ..Default::default() });
    assert!(tokio::time::timeout(PATIENCE, writes).await.unwrap().unwrap().unwrap().trigger.is_none());
    assert!(!waits.is_finished());
    file.execute_batch("rollback").unwrap();
    waits.await.unwrap().unwrap();
    assert!(world.fleet.call(poll("eve", "e")).await.unwrap().trigger.is_some());
}

/// Mentions on PostgreSQL, step by step: a post, a read, a claim and a settling use the same reader's row.
async fn talking() -> World {
    let world = World::postgres().await;
    world
        .story(
            "
            agent/join bob                    -> agent.name=bob
            agent/join eve                    -> agent.name=eve
            channel/create c                  -> existing=false
            channel/post c body=@bob author=x -> post.n=1
        ",
        )
        .await;
    world
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mention_that_races_the_settling_of_another_triggers_again() {
    let world = talking().await;
    world.fleet.call(poll("bob", "b1")).await.unwrap().trigger.unwrap();
    let (settled, posted) = meet(&world, settle("b1"), post("c", "@bob")).await;
    assert_eq!((settled.unwrap().settled.len(), posted.unwrap().post.n), (1, 2));
    let again = world.fleet.call(poll("bob", "b2")).await.unwrap().trigger.unwrap();
    assert_eq!((again.channels[0].from, again.channels[0].to), (2, 2));
    let (posted, settled) = meet(&world, post("c", "@bob"), settle("b2")).await;
    assert_eq!((settled.unwrap().settled.len(), posted.unwrap().post.n), (1, 3));
    let again = world.fleet.call(poll("bob", "b3")).await.unwrap().trigger.unwrap();
    assert_eq!(again.channels[0].mentions, [3]);
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mention_that_races_a_poll_is_in_it_or_in_the_next() {
    let world = talking().await;
    let (polled, posted) = meet(&world, poll("bob", "b1"), post("c", "@bob")).await;
    let (first, n) = (polled.unwrap().trigger.unwrap(), posted.unwrap().post.n);
    assert_eq!((first.channels[0].to, n), (1, 2));
    world.fleet.call(settle("b1")).await.unwrap();
    let (posted, polled) = meet(&world, post("c", "@bob"), poll("bob", "b2")).await;
    posted.unwrap();
    let mut seen = Vec::new();
    if let Some(trigger) = polled.unwrap().trigger {
        seen.extend(trigger.channels[0].mentions.clone());
        world.fleet.call(settle("b2")).await.unwrap();
    }
    if let Some(trigger) = world.fleet.call(poll("bob", "b3")).await.unwrap().trigger {
        seen.extend(trigger.channels[0].mentions.clone());
    }
    assert_eq!(seen, [2, 3]);
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_that_races_a_poll_or_a_settling_loses_nothing() {
    let world = talking().await;
    let (page, polled) = meet(&world, read("bob", None), poll("bob", "b1")).await;
    assert_eq!((page.unwrap().cursor, polled.unwrap().trigger), (1, None));
    world.fleet.call(post("c", "@bob")).await.unwrap();
    let (polled, page) = meet(&world, poll("bob", "b2"), read("bob", None)).await;
    let token = polled.unwrap().trigger.unwrap().claims[0].token.clone();
    let page = page.unwrap();
    assert_eq!((page.cursor, page.held_by.as_deref()), (1, Some("b2")), "it is another's to mark");
    assert_eq!(world.guard(&token).await, fencepost::claim::Verdict::Ok);
    world.fleet.call(post("c", "@bob")).await.unwrap();
    let (settled, page) = meet(&world, settle("b2"), read("bob", None)).await;
    let page = page.unwrap();
    assert_eq!((settled.unwrap().settled, page.posts[0].n, page.cursor), (vec![token.clone()], 3, 3));
    assert_eq!(code(world.fleet.call(read("bob", Some(&token))).await), Code::LeaseExpired);
    world.fleet.call(post("c", "@bob")).await.unwrap();
    let again = world.fleet.call(poll("bob", "b3")).await.unwrap().trigger.unwrap();
    assert_eq!(again.channels[0].mentions, [4]);
    let token = again.claims[0].token.clone();
    let (page, settled) = meet(&world, read("bob", Some(&token)), settle("b3")).await;
    assert_eq!((page.unwrap().cursor, settled.unwrap().settled), (3, vec![token]));
    world.assert_sound().await;
}

/// A read under a claim whose run ends at the same time does not move the cursor, whether or not it is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_that_races_the_end_of_its_run() {
    let world = talking().await;
    let token = world.fleet.call(poll("bob", "b1")).await.unwrap().trigger.unwrap().claims[0].token.clone();
    let ending = run_to_commit(&world, run::End { run: "b1".into(), ..Default::default() }).await;
    let reading = start(&world.fleet, read("bob", Some(&token)));
    ending.holds_up(&world, &reading).await;
    ending.commit().await.unwrap();
    match reading.await.unwrap() {
        Ok(page) => assert_eq!(page.cursor, 0),
        Err(e) => assert_eq!(e.code(), Code::LeaseExpired),
    }
    let again = world.fleet.call(poll("bob", "b2")).await.unwrap().trigger.unwrap();
    assert_eq!(again.channels[0].mentions, [1]);
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_delegations_of_one_message_make_one_task() {
    let world = World::postgres().await;
    world.story("inbox/send bob text=fix -> item.id=1").await;
    let delegate = inbox::Delegate { message: "1".into(), ..Default::default() };
    let (first, second) = meet(&world, delegate.clone(), delegate).await;
    assert_eq!(first.unwrap().task.id, second.unwrap().task.id);
    assert_eq!(world.fleet.call(task::List::default()).await.unwrap().tasks.len(), 1);
    let respond = inbox::Respond { message: "2".into(), text: "sure".into() };
    let delegate = inbox::Delegate { message: "2".into(), ..Default::default() };
    world.story("inbox/send bob text=more -> item.id=2").await;
    let (responded, delegated) = meet(&world, respond, delegate).await;
    assert_eq!((responded.unwrap().item.id, code(delegated)), (2, Code::AlreadyFinished));
    assert_eq!(world.fleet.call(task::List::default()).await.unwrap().tasks.len(), 1);
    world.assert_sound().await;
}

/// A poll that waited for another takes what is left, and the last free place is used once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polls_that_race_for_the_last_place() {
    let world = World::postgres().await;
    world
        .story(
            "
            agent/join bob max_concurrent=1   -> agent.name=bob
            agent/join eve capabilities=a,b   -> agent.name=eve
            agent/join ada capabilities=a,b   -> agent.name=ada
            agent/join lead role=lead         -> agent.name=lead
            agent/join boss role=lead         -> agent.name=boss
            add one tags=a priority=60        -> auth-1
            add two tags=b                    -> auth-2
        ",
        )
        .await;
    let (first, second) = meet(&world, poll("eve", "e1"), poll("ada", "a1")).await;
    let tokens = [first, second].map(|polled| polled.unwrap().trigger.unwrap().claims[0].token.clone());
    assert_eq!(tokens, ["task/auth-1@1", "task/auth-2@1"], "what another is taking hides nothing");
    world.story("add three -> auth-3\nadd four -> auth-4").await;
    let (first, second) = meet(&world, poll("bob", "b1"), poll("bob", "b2")).await;
    assert!(first.unwrap().trigger.is_some());
    assert!(second.unwrap().held_back.is_some());
    let (first, second) = meet(&world, settle("b1"), poll("bob", "b3")).await;
    first.unwrap();
    let second = match second.unwrap().trigger {
        Some(trigger) => Some(trigger),
        None => world.fleet.call(poll("bob", "b3")).await.unwrap().trigger,
    };
    assert_eq!(second.unwrap().claims[0].token, "task/auth-4@1");
    world.fleet.call(settle("e1")).await.unwrap();
    world.fleet.call(settle("a1")).await.unwrap();
    let (first, second) = meet(&world, poll("lead", "l1"), poll("boss", "l2")).await;
    let told = |polled: agent::poll::Polled| polled.trigger.map_or(0, |trigger| trigger.tasks.len());
    assert_eq!((told(first.unwrap()), told(second.unwrap())), (3, 0));
    world.assert_sound().await;
}
