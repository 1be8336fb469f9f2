//! Polls: every trigger reaches exactly one run.

use fencepost::{Code, Fleet, Millis, agent, channel, inbox, run, task};
use fencepost_testing::{PATIENCE, World, on_both, world::code};
use std::collections::HashSet;

fn poll(agent: &str, run: &str) -> agent::Poll {
    agent::Poll { agent: agent.into(), run: run.into(), ..Default::default() }
}

on_both! {
    /// One trigger of each kind, in the documented order.
    async fn a_poll_returns_triggers_in_order(world: World) {
        world.story("
            agent/join bob                        -> agent.role=worker agent.online=true
            agent/join lead role=lead             -> agent.role=lead
            add pool                              -> auth-1
            add mine to=bob                       -> auth-2
            add maybe offer=bob                   -> auth-3
            inbox/send bob text=hello             -> item.id=1
            channel/create general                -> existing=false
            channel/post general body=@bob author=lead -> post.n=1
            agent/poll bob run=b1                 -> type=task_offered claims=task/auth-3@1 task=auth-3
            agent/poll bob run=b2                 -> type=task_assigned claims=task/auth-2@1
            agent/poll bob run=b3                 -> type=inbox_message claims=message/1@1 messages=1 count=1
            agent/poll bob run=b4                 -> type=unread_mentions claims=mentions/bob/general@1 channels=general:1-1
            agent/poll bob run=b5                 -> type=pool_task claims=task/auth-1@1
            agent/poll bob run=b6                 -> trigger=none
            agent/poll lead run=l1                -> trigger=none
            done task/auth-1@1                    -> completed
            fail task/auth-2@1 reason=no          -> failed
            agent/poll lead run=l2                -> type=tasks_finished tasks=auth-1,auth-2 count=2
            agent/poll lead run=l3                -> trigger=none
        ").await;
    }

    async fn a_trigger_that_waited_too_long_goes_first(world: World) {
        world.story("
            agent/join bob                                -> agent.name=bob
            add old                                       -> auth-1
            +600s agent/join bob                          -> agent.name=bob
            add mine to=bob                               -> auth-2
            agent/poll bob run=b1                         -> type=pool_task
            agent/poll bob run=b2                         -> type=task_assigned
        ").await;
    }

    /// A repeated poll returns the same trigger: a run has one.
    async fn a_repeated_poll_returns_the_same_trigger(world: World) {
        world.story("
            agent/join bob                 -> agent.name=bob
            inbox/send bob text=one        -> item.id=1
            inbox/send bob text=two        -> item.id=2
            agent/poll bob run=b1          -> type=inbox_message claims=message/1@1,message/2@1
            agent/poll bob run=b1          -> type=inbox_message claims=message/1@1,message/2@1
            inbox/respond message/1@1 text=hi -> responded
            agent/poll bob run=b1          -> claims=message/2@1
            run/settle b1                  -> settled=message/2@1 left=message/1@1
            run/settle b1                  -> run.alive=false
            agent/poll bob run=b1          -> refused lease_expired
            agent/poll bob run=b2          -> trigger=none
        ").await;
        assert_eq!(world.times("message.completed").await, 2);
    }

    async fn a_dead_runs_trigger_comes_back_and_its_late_answer_is_refused(world: World) {
        world.story("
            agent/join bob                     -> agent.name=bob
            add mine to=bob                    -> auth-1
            inbox/send bob text=x              -> item.id=1
            channel/create c                   -> existing=false
            channel/post c body=@bob author=eve -> post.n=1
            agent/poll bob run=b1              -> type=task_assigned
            agent/poll bob run=b2              -> type=inbox_message
            agent/poll bob run=b3              -> type=unread_mentions
            +60s agent/poll bob run=b4         -> type=task_assigned claims=task/auth-1@2
            agent/poll bob run=b5              -> type=inbox_message claims=message/1@2
            agent/poll bob run=b6              -> type=unread_mentions claims=mentions/bob/c@2
            run/settle b1                      -> refused lease_expired
            run/settle b2                      -> refused lease_expired
            run/settle b3                      -> refused lease_expired
            run/settle b4                      -> settled=task/auth-1@2
            run/settle b5 outcome=failed reason=net -> settled=message/1@2
            run/settle b6                      -> settled=mentions/bob/c@2
            show auth-1                        -> completed attempts=2
            channel/unread bob                 -> channels=none
        ").await;
    }

    /// A notice is claimed and then completed: a lead that crashes between the two loses nothing.
    async fn finished_notices_survive_a_leads_crash(world: World) {
        world.story("
            add one                            -> auth-1
            add two                            -> auth-2
            add three                          -> auth-3
            add four max_attempts=1            -> auth-4
            add gone                           -> auth-5
            claim auth-1 run=w                 -> task/auth-1@1
            done task/auth-1@1                 -> completed
            claim auth-2 run=l agent=lead      -> task/auth-2@1
            agent/join lead role=lead          -> agent.role=lead
            agent/join other role=lead         -> agent.role=lead
            done task/auth-2@1                 -> completed
            cancel auth-5                      -> cancelled
            agent/poll lead run=l1             -> type=tasks_finished tasks=auth-1
            agent/poll other run=o1            -> trigger=none
            claim auth-4 run=x                 -> task/auth-4@1
            +60s agent/poll other run=o2       -> type=tasks_finished tasks=auth-1
            run/settle l1                      -> refused lease_expired
            run/settle o2                      -> run.alive=false
            agent/poll other run=o3            -> type=tasks_finished tasks=auth-4
            run/settle o3                      -> run.alive=false
            +60s agent/poll lead run=l3        -> trigger=none
            retry auth-4                       -> unassigned
            claim auth-4 run=x                 -> task/auth-4@2
            done task/auth-4@2                 -> completed
            agent/poll lead run=l4             -> tasks=auth-4
        ").await;
    }

    async fn offers_are_reviewed_by_their_agent_only(world: World) {
        world.story("
            agent/join bob                       -> agent.name=bob
            agent/join eve                       -> agent.name=eve
            add maybe offer=bob                  -> auth-1
            agent/poll eve run=e1                -> trigger=none
            agent/poll bob run=b1                -> type=task_offered
            +60s agent/poll bob run=b2           -> type=task_offered
            +60s agent/poll bob run=b3           -> type=task_offered
            +60s agent/poll eve run=e2           -> type=pool_task claims=task/auth-1@4
        ").await;
    }

    async fn max_concurrent_limits_an_agent(world: World) {
        world.story("
            agent/join bob max_concurrent=2      -> agent.max_concurrent=2
            add one                              -> auth-1
            add two                              -> auth-2
            add three                            -> auth-3
            agent/poll bob run=b1                -> type=pool_task
            agent/poll bob run=b2                -> type=pool_task
            agent/poll bob run=b3                -> trigger=none
            run/settle b1                        -> run.alive=false
            agent/poll bob run=b3                -> type=pool_task
            agent/join bob max_concurrent=0      -> agent.max_concurrent=none
        ").await;
        let held = world.fleet.call(agent::Poll { accept: Some(vec![]), ..poll("bob", "b9") }).await.unwrap();
        assert_eq!(held.trigger, None);
    }

    async fn a_worker_gets_tasks_that_fit_its_capabilities(world: World) {
        world.story("
            agent/join rust capabilities=rust,db   -> agent.capabilities=rust,db
            agent/join any                         -> agent.name=any
            add python tags=python priority=90     -> auth-1
            add both tags=db,rust priority=60      -> auth-2
            add plain                              -> auth-3
            add mixed tags=rust,python             -> auth-4
            agent/poll rust run=r1                 -> claims=task/auth-2@1
            agent/poll rust run=r2 tag=rust        -> trigger=none
            agent/poll rust run=r3                 -> claims=task/auth-3@1
            agent/poll rust run=r4                 -> trigger=none
            agent/poll any run=a1 tag=rust         -> claims=task/auth-4@1
            agent/poll any run=a2                  -> claims=task/auth-1@1
        ").await;
    }

    /// A board narrows the pool only, and goes together with a tag and with capabilities.
    async fn a_poll_can_be_limited_to_a_board(world: World) {
        world.story("
            agent/join any                                   -> agent.name=any
            agent/join rust capabilities=rust,db             -> agent.name=rust
            add best priority=90                             -> auth-1
            add other board=web tags=rust priority=80        -> web-1
            add neighbour board=web.2 priority=99            -> web.2-1
            add plain board=web                              -> web-2
            add both board=web tags=db,rust priority=60      -> web-3
            add foreign board=web tags=rust,go priority=95   -> web-4
            add mine board=api to=rust                       -> api-1
            agent/poll any run=n1 board=web pool=notify      -> type=pool_tasks_available count=4
            agent/poll any run=n2 board=web tag=rust pool=notify -> count=3
            agent/poll any run=n3 board=none pool=notify     -> trigger=none
            agent/poll rust run=r0 board=web                 -> type=task_assigned claims=task/api-1@1
            agent/poll rust run=n4 board=web pool=notify     -> count=3
            agent/poll rust run=n5 board=web tag=db pool=notify -> count=1
            agent/poll rust run=n6 pool=notify               -> count=5
            agent/poll rust run=r1 board=web                 -> claims=task/web-1@1
            agent/poll rust run=r2 board=web tag=db          -> claims=task/web-3@1
            agent/poll rust run=r3 board=web tag=db          -> trigger=none
            agent/poll rust run=r4 board=web                 -> claims=task/web-2@1
            agent/poll rust run=r5 board=web                 -> trigger=none
            agent/poll any run=a1 board=auth tag=rust        -> trigger=none
            agent/poll any run=a2 board=web tag=rust         -> claims=task/web-4@1
            agent/poll any run=a3 board=web                  -> trigger=none
            agent/poll any run=a4 board=auth                 -> claims=task/auth-1@1
            agent/poll any run=a5                            -> claims=task/web.2-1@1
            agent/poll any run=a6 board=no/name              -> refused invalid
        ").await;
    }

    async fn a_poll_can_announce_pool_tasks_without_claiming(world: World) {
        world.story("
            agent/join a                           -> agent.name=a
            agent/join b max_concurrent=3          -> agent.name=b
            add one                                -> auth-1
            add two                                -> auth-2
            agent/poll a run=a1 pool=notify        -> type=pool_tasks_available count=2 claims=none
            agent/poll b run=b1 pool=notify        -> type=pool_tasks_available count=2
            agent/poll b run=b2 pool=off           -> trigger=none
            agent/poll a run=a2                    -> type=pool_task
        ").await;
    }

    async fn items_of_a_silent_agent_are_stranded_and_come_back(world: World) {
        world.story("
            agent/join bob                         -> agent.online=true
            add mine to=bob                        -> auth-1
            add maybe offer=bob                    -> auth-2
            agent/recall bob                       -> refused not_ready
        ").await;
        world.pass(301);
        let agents = world.fleet.call(agent::List::default()).await.unwrap().agents;
        assert!(!agents[0].online);
        assert_eq!(agents[0].stranded, ["auth-1", "auth-2"]);
        world.story("
            agent/join eve                         -> agent.name=eve
            +1798s agent/poll eve run=e1           -> trigger=none
            +1s agent/poll eve run=e2              -> claims=task/auth-1@1
            add again to=bob                       -> auth-3
            agent/recall bob                       -> tasks=auth-3
            agent/poll bob run=b1                  -> type=pool_task claims=task/auth-2@1
        ").await;
    }

    async fn inbox_items_are_read_answered_or_delegated(world: World) {
        world.story("
            inbox/send bob text=one source=slack channel=C1 thread=T17 sender=U1 key=d1 -> item.status=unread existing=false
            inbox/send bob text=one source=slack key=d1 -> item.id=1 existing=true
            inbox/send bob text=two                -> item.id=2
            inbox/send bob text=three              -> item.id=3
            inbox/respond 2 text=sure              -> item.status=responded item.response=sure
            inbox/respond 2 text=sure              -> item.status=responded
            inbox/read 2                           -> refused already_finished
            inbox/delegate 1 title=fix             -> item.status=delegated task=main-1
            inbox/delegate 1 title=fix             -> task=main-1
            agent/join bob                         -> agent.name=bob
            agent/poll bob run=b1                  -> claims=message/3@1
            inbox/read 3                           -> refused already_claimed
            inbox/read message/3@1                 -> item.status=read
            show main-1                            -> title=fix source=slack origin.channel=C1 origin.thread=T17
            inbox/list bob                         -> items=none
        ").await;
        assert_eq!(world.fleet.call(inbox::List { agent: "bob".into(), all: true, ..Default::default() }).await.unwrap().items.len(), 3);
    }

    /// Fifty of each kind, sixteen pollers: each item is in exactly one reply.
    async fn concurrent_polls_never_share_anything(world: World) {
        world.join("bob", agent::Role::Worker).await;
        world.join("lead", agent::Role::Lead).await;
        for i in 0..50 {
            world.fleet.call(task::Add::new("pool", format!("p{i}"))).await.unwrap();
            world.fleet.call(task::Add { to: Some("bob".into()), ..task::Add::new("mine", "m") }).await.unwrap();
            world.fleet.call(task::Add { offer: Some("bob".into()), ..task::Add::new("maybe", "o") }).await.unwrap();
            world.fleet.call(inbox::Send { agent: "bob".into(), text: format!("t{i}"), ..Default::default() }).await.unwrap();
        }
        for i in 0..10 {
            let name = format!("c{i}");
            world.fleet.call(channel::Create { channel: name.clone(), ..Default::default() }).await.unwrap();
            world.fleet.call(channel::Post { channel: name, body: "@bob".into(), ..Default::default() }).await.unwrap();
        }
        let other = world.again().await;
        let pollers: Vec<_> = (0..16)
            .map(|i| {
                let fleet: Fleet = if i % 2 == 0 { world.fleet.clone() } else { other.clone() };
                tokio::spawn(async move {
                    let mut taken = Vec::new();
                    for n in 0.. {
                        let polled = fleet.call(poll("bob", &format!("b{i}-{n}"))).await.unwrap();
                        let Some(trigger) = polled.trigger else { break };
                        if trigger.kind == agent::Type::TaskOffered {
                            let (task, token) = (trigger.task.unwrap().id, trigger.claims[0].token.clone());
                            fleet.call(task::Accept { task, agent: "bob".into(), token: Some(token), request: None }).await.unwrap();
                        }
                        taken.extend(trigger.claims.into_iter().map(|claim| claim.resource));
                        fleet.call(run::Settle { run: trigger.run, ..Default::default() }).await.unwrap();
                    }
                    taken
                })
            })
            .collect();
        let mut all = Vec::new();
        for poller in pollers {
            all.extend(poller.await.unwrap());
        }
        let kinds = |prefix: &str| all.iter().filter(|resource| resource.starts_with(prefix)).collect::<Vec<_>>();
        // An accepted offer comes a second time, as the agent's task.
        for (prefix, count) in
            [("task/pool-", 50), ("task/mine-", 50), ("message/", 50), ("mentions/", 10), ("task/maybe-", 100)]
        {
            let found = kinds(prefix);
            let distinct: HashSet<_> = found.iter().collect();
            assert_eq!((found.len(), distinct.len()), (count, count.min(50)), "{prefix}");
        }
    }

    async fn max_concurrent_holds_under_a_race(world: World) {
        world.fleet.call(agent::Join { agent: "bob".into(), max_concurrent: Some(3), ..Default::default() }).await.unwrap();
        for i in 0..20 {
            world.fleet.call(task::Add::new("pool", format!("p{i}"))).await.unwrap();
        }
        let other = world.again().await;
        let polls: Vec<_> = (0..16)
            .map(|i| {
                let fleet: Fleet = if i % 2 == 0 { world.fleet.clone() } else { other.clone() };
                tokio::spawn(async move { fleet.call(poll("bob", &format!("b{i}"))).await.unwrap().trigger.is_some() })
            })
            .collect();
        let mut given = 0;
        for poll in polls {
            given += usize::from(poll.await.unwrap());
        }
        assert_eq!(given, 3);
    }

    /// A waiting poll writes nothing, and its own trigger wakes it.
    async fn a_parked_poll_wakes_for_its_own_trigger(world: World) {
        for name in ["a", "b", "c"] {
            world.join(name, agent::Role::Worker).await;
        }
        let wait = |agent: &'static str| {
            let fleet = world.fleet.clone();
            tokio::spawn(async move {
                let poll = agent::Poll { wait_ms: Some(Millis::minutes(4)), ..poll(agent, &format!("run-{agent}")) };
                let polled = tokio::time::timeout(PATIENCE, fleet.call(poll)).await;
                polled.expect("it is woken").unwrap().trigger.map(|trigger| trigger.kind)
            })
        };
        let (a, b, c) = (wait("a"), wait("b"), wait("c"));
        while world.fleet.stats().waiting < 3 {
            tokio::task::yield_now().await;
        }
        world.fleet.call(inbox::Send { agent: "b".into(), text: "x".into(), ..Default::default() }).await.unwrap();
        assert_eq!(b.await.unwrap(), Some(agent::Type::InboxMessage));
        assert!(!a.is_finished() && !c.is_finished());
        world.add("pool").await;
        world.add("pool").await;
        assert_eq!(a.await.unwrap(), Some(agent::Type::PoolTask));
        assert_eq!(c.await.unwrap(), Some(agent::Type::PoolTask));
    }

    async fn an_unknown_agent_cannot_poll(world: World) {
        assert_eq!(code(world.fleet.call(poll("nobody", "r")).await), Code::NotFound);
        world.join("bob", agent::Role::Worker).await;
        world.fleet.call(agent::Leave { agent: "bob".into(), ..Default::default() }).await.unwrap();
        assert_eq!(code(world.fleet.call(poll("bob", "r")).await), Code::NotFound);
    }
}
