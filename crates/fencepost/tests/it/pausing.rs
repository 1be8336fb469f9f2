//! Paused agents: their polls get nothing, and nothing else changes.

use crate::{
    open_transactions::{run_to_commit, start},
    waiting::{answer, parked, waits},
};
use fencepost::{Access, Code, Millis, Result, admin, agent, inbox, key, run, task};
use fencepost_testing::{PATIENCE, World, eventually, on_both, world::code};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
use tokio::task::JoinHandle;

type Waiting = JoinHandle<Result<agent::poll::Polled>>;

fn poll(agent: &str, run: &str) -> agent::Poll {
    agent::Poll { agent: agent.into(), run: run.into(), ..Default::default() }
}

/// A poll that waits for this many seconds.
fn polls(world: &World, agent: &str, run: &str, seconds: i64) -> Waiting {
    waits(&world.fleet, agent::Poll { wait_ms: Some(Millis::seconds(seconds)), ..poll(agent, run) })
}

async fn given(poll: Waiting) -> String {
    answer(poll).await.unwrap().trigger.expect("a trigger").claims[0].token.clone()
}

fn pause(agent: &str) -> agent::Pause {
    agent::Pause { agent: Some(agent.into()), ..Default::default() }
}

fn resume(agent: &str) -> agent::Resume {
    agent::Resume { agent: Some(agent.into()), ..Default::default() }
}

on_both! {
    async fn a_paused_agent_gets_no_trigger_until_it_is_resumed(world: World) {
        world.story("
            agent/join bob                                -> agent.name=bob agent.paused=none
            agent/join eve                                -> agent.name=eve
            add first                                     -> auth-1
            agent/poll bob run=b1                         -> claims=task/auth-1@1
            agent/pause bob reason=quota                  -> agents.0.name=bob agents.0.paused.reason=quota
            agent/pause bob                               -> agents.0.paused.reason=quota
            add second                                    -> auth-2
            add third                                     -> auth-3
            add fourth                                    -> auth-4
            agent/poll bob run=b2                         -> refused paused agent=bob retry_after_ms=none
            agent/poll bob run=b1                         -> claims=task/auth-1@1
            claim run=hand agent=bob                      -> task/auth-2@1
            agent/poll eve run=e1                         -> claims=task/auth-3@1
            +20s run/settle b1                            -> settled=task/auth-1@1
            agent/join bob max_concurrent=3               -> agent.paused.reason=quota
            agent/leave bob                               -> agent.name=bob
            agent/pause bob                               -> refused not_found
            agent/join bob                                -> agent.paused.reason=quota
            agent/poll bob run=b2                         -> refused paused
            agent/resume bob                              -> agents.0.name=bob agents.0.paused=none
            agent/resume bob                              -> agents.0.paused=none
            agent/poll bob run=b2                         -> claims=task/auth-4@1
            agent/pause nobody                            -> refused not_found
            agent/resume nobody                           -> refused not_found
            agent/pause all=false                         -> refused invalid
            agent/resume bob all=true                     -> refused invalid
            agent/pause bob for_ms=0                      -> refused invalid
        ").await;
        assert_eq!((world.times("agent.paused").await, world.times("agent.resumed").await), (1, 1));
        let error = world.fleet.call(agent::Pause { reason: Some("no disk".into()), ..pause("bob") }).await;
        assert_eq!(error.unwrap().agents[0].paused.as_ref().unwrap().reason.as_deref(), Some("no disk"));
        let error = world.fleet.call(poll("bob", "b3")).await.unwrap_err();
        assert_eq!((error.code(), error.message()), (Code::Paused, "agent `bob` is paused: no disk"));
        assert!(error.hint_text().unwrap().starts_with("fence agent resume bob"), "{error:?}");
    }

    /// A pause with an end is over at its end. It shortens no other.
    async fn a_pause_can_end_by_itself(world: World) {
        world.story("
            agent/join bob                                -> agent.name=bob
            add first                                     -> auth-1
            agent/pause bob for_ms=60000 reason=limit     -> agents.0.paused.reason=limit
            +20s agent/pause bob for_ms=10000 reason=x    -> agents.0.paused.reason=limit
            +10s agent/poll bob run=b1                    -> refused paused retry_after_ms=30000
            +29s agent/poll bob run=b1                    -> refused paused retry_after_ms=1000
            +1s agent/poll bob run=b1                     -> claims=task/auth-1@1
            add second                                    -> auth-2
            agent/pause bob for_ms=10000                  -> agents.0.paused.reason=none
            agent/pause bob for_ms=20000                  -> agents.0.name=bob
            +19s agent/poll bob run=b2                    -> refused paused retry_after_ms=1000
            agent/pause bob reason=person                 -> agents.0.paused.until=none
            agent/pause bob for_ms=1000 reason=limit      -> agents.0.paused.reason=person agents.0.paused.until=none
            +5s agent/poll bob run=b2                     -> refused paused retry_after_ms=none
            agent/resume bob                              -> agents.0.paused=none
            agent/poll bob run=b2                         -> claims=task/auth-2@1
        ").await;
        let listed = world.fleet.call(agent::List::default()).await.unwrap().agents;
        assert_eq!(listed[0].paused, None);
    }

    /// A pause takes effect on polls that wait already, all of them, and the work goes to others.
    async fn polls_of_a_paused_agent_wait_until_it_is_resumed(world: World) {
        world.join("bob", agent::Role::Worker).await;
        world.join("eve", agent::Role::Worker).await;
        let bobs = ["b1", "b2", "b3"].map(|run| polls(&world, "bob", run, 600));
        parked(&world.fleet, 3).await;
        let eve = polls(&world, "eve", "e1", 600);
        parked(&world.fleet, 4).await;
        world.fleet.call(pause("bob")).await.unwrap();
        world.add("for eve").await;
        assert_eq!(given(eve).await, "task/auth-1@1");
        world.done("task/auth-1@1").await.unwrap();
        world.fleet.call(inbox::Send { agent: "bob".into(), text: "x".into(), ..Default::default() }).await.unwrap();
        for title in ["a", "b"] {
            world.add(title).await;
        }
        let late = polls(&world, "bob", "b4", 600);
        parked(&world.fleet, 4).await;
        assert_eq!(world.times("run.triggered").await, 1);
        // It polls, so it is online, however long the pause lasts.
        let eye = world.reopened().await;
        for _ in 0..5 {
            world.pass(80);
            eventually("it is online", async || {
                let agents = eye.fleet.call(agent::List::default()).await.unwrap().agents;
                agents[0].online && agents[0].paused.is_some()
            })
            .await;
        }
        world.fleet.call(resume("bob")).await.unwrap();
        let mut taken = Vec::new();
        let mut waiting = Vec::from(bobs);
        waiting.push(late);
        while taken.len() < 3 {
            eventually("a poll is given something", async || waiting.iter().any(JoinHandle::is_finished)).await;
            let at = waiting.iter().position(JoinHandle::is_finished).unwrap();
            taken.push(given(waiting.remove(at)).await);
        }
        taken.sort();
        assert_eq!(taken, ["message/1@1", "task/auth-2@1", "task/auth-3@1"]);
        waiting.iter().for_each(JoinHandle::abort);
        parked(&world.fleet, 0).await;
    }

    /// The clock alone ends a pause, and a wait.
    async fn the_end_of_a_pause_wakes_its_polls(world: World) {
        world.join("bob", agent::Role::Worker).await;
        world.add("x").await;
        world.fleet.call(agent::Pause { for_ms: Some(Millis::seconds(60)), ..pause("bob") }).await.unwrap();
        let (short, long) = (polls(&world, "bob", "b1", 30), polls(&world, "bob", "b2", 600));
        parked(&world.fleet, 2).await;
        world.pass(30);
        let error = answer(short).await.unwrap_err();
        assert_eq!((error.code(), error.field("retry_after_ms")), (Code::Paused, Some(&30_000.into())));
        assert!(!long.is_finished());
        world.pass(30);
        assert_eq!(given(long).await, "task/auth-1@1");
    }

    /// With `now`, everything comes back as it was: no attempt counts, and late answers are refused.
    async fn a_pause_can_end_live_triggers(world: World) {
        world.story("
            agent/join bob                                -> agent.name=bob
            agent/join eve                                -> agent.name=eve
            channel/create c                              -> existing=false
            add maybe offer=bob                           -> auth-1
            add mine to=bob                               -> auth-2
            add pool                                      -> auth-3
            inbox/send bob text=one                       -> item.id=1
            inbox/send bob text=two                       -> item.id=2
            channel/post c body=@bob author=x             -> post.n=1
            inbox/send eve text=hers                      -> item.id=3
            agent/poll bob run=b1                         -> type=task_offered
            agent/poll bob run=b2                         -> type=task_assigned
            agent/poll bob run=b3                         -> type=inbox_message
            agent/poll bob run=b4                         -> type=unread_mentions
            agent/poll bob run=b5                         -> type=pool_task
            agent/poll eve run=e1                         -> type=inbox_message
            claim run=hand task=auth-4                    -> refused not_found
            add by-hand                                   -> auth-4
            claim run=hand agent=bob                      -> task/auth-4@1
            done task/auth-2@1 output=early               -> completed
            add for-a-trigger                             -> auth-5
            claim auth-5 run=b5 agent=bob                 -> task/auth-5@1
            add after-a-notice                            -> auth-6
            lock/claim name=pool-notice/bob run=n1 agent=bob -> claim.token=lock/pool-notice/bob@1
            claim auth-6 run=n1 agent=bob                 -> task/auth-6@1
            agent/pause bob now=true                      -> ended=b1,b2,b3,b4,b5,n1
            agent/pause bob now=true                      -> ended=none
            guard task/auth-4@1                           -> ok=true
            guard lock/pool-notice/bob@1                  -> ok=false
            guard message/3@1                             -> ok=true
            guard task/auth-3@1                           -> ok=false ended_by=none
            guard message/1@1                             -> ok=false ended_by=none
            guard mentions/bob/c@1                        -> ok=false ended_by=none
            done task/auth-3@1                            -> refused lease_expired ended_by=pause
            run/settle b3                                 -> refused already_finished
            run/settle b3 outcome=released                -> back=message/1@1,message/2@1
            run/settle b2 outcome=released                -> left=task/auth-2@1
            agent/poll bob run=b5                         -> refused lease_expired
        ").await;
        for (task, status, attempts) in
            [("auth-1", task::Status::Offered, 0), ("auth-2", task::Status::Completed, 1), ("auth-3", task::Status::Unassigned, 0),
             ("auth-5", task::Status::Unassigned, 0), ("auth-6", task::Status::Unassigned, 0)]
        {
            let task = world.show(task).await;
            assert_eq!((task.status, task.attempts), (status, attempts), "{}", task.id);
        }
        assert_eq!((world.message(1).await.attempts, world.message(3).await.attempts), (0, 1));
        world.story("
            agent/resume bob                              -> agents.0.paused=none
            agent/poll bob run=c1                         -> claims=task/auth-1@2
            agent/poll bob run=c2                         -> claims=message/1@2,message/2@2
            agent/poll bob run=c3                         -> claims=mentions/bob/c@2
            agent/poll bob run=c4                         -> claims=task/auth-3@2
        ").await;
    }

    async fn a_fleet_is_paused_by_an_operator(world: World) {
        for name in ["bob", "eve", "gone"] {
            world.join(name, agent::Role::Worker).await;
        }
        world.fleet.call(agent::Leave { agent: "gone".into(), reason: None }).await.unwrap();
        let as_key = async |role, name: &str| {
            let add = key::Add { agent: Some(name.to_owned()).filter(|_| role == Access::Agent), ..key::Add::new(name, role) };
            let secret = world.fleet.call(add).await.unwrap().secret;
            world.fleet.as_key(&world.fleet.key(&secret).await.unwrap().expect("it was just added"))
        };
        let (bob, admin) = (as_key(Access::Agent, "bob").await, as_key(Access::Admin, "root").await);
        let all = agent::Pause { all: true, now: true, ..Default::default() };
        assert_eq!(code(bob.call(all.clone()).await), Code::Forbidden);
        assert_eq!(code(bob.call(agent::Resume { all: true, agent: None }).await), Code::Forbidden);
        assert_eq!(code(bob.call(pause("eve")).await), Code::Forbidden);
        assert_eq!(code(bob.call(resume("eve")).await), Code::Forbidden);
        assert!(bob.call(pause("bob")).await.unwrap().agents[0].paused.is_some());
        assert_eq!(bob.call(resume("bob")).await.unwrap().agents[0].paused, None);
        for name in ["one", "two"] {
            world.add(name).await;
        }
        assert!(world.fleet.call(poll("eve", "e1")).await.unwrap().trigger.is_some());
        let paused = admin.call(all).await.unwrap();
        let names: Vec<_> = paused.agents.iter().map(|agent| agent.name.as_str()).collect();
        assert_eq!((names, paused.ended), (vec!["bob", "eve"], vec!["e1".to_owned()]));
        assert!(paused.agents.iter().all(|agent| agent.paused.is_some()));
        for name in ["bob", "eve"] {
            assert_eq!(code(world.fleet.call(poll(name, "r")).await), Code::Paused);
        }
        assert_eq!(admin.call(agent::Resume { all: true, agent: None }).await.unwrap().agents.len(), 2);
        for name in ["bob", "eve"] {
            assert!(world.fleet.call(poll(name, name)).await.unwrap().trigger.is_some());
        }
    }

    /// A moved fleet is paused where it was.
    async fn a_pause_is_exported(world: World) {
        for name in ["bob", "eve", "sam"] {
            world.join(name, agent::Role::Worker).await;
        }
        let timed = |name: &str, seconds| agent::Pause { for_ms: Some(Millis::seconds(seconds)), ..pause(name) };
        world.fleet.call(agent::Pause { reason: Some("moving".into()), ..timed("bob", 3600) }).await.unwrap();
        world.fleet.call(pause("eve")).await.unwrap();
        world.fleet.call(timed("sam", 1)).await.unwrap();
        world.pass(1);
        let before = world.fleet.call(agent::List::default()).await.unwrap().agents;
        let agents = world.fleet.call(admin::Export::default()).await.unwrap().agents;
        world.sql("delete from agent").await;
        let import = admin::Import { source: "fencepost".into(), agents, ..Default::default() };
        world.fleet.call(import).await.unwrap();
        let after = world.fleet.call(agent::List::default()).await.unwrap().agents;
        let pauses = |agents: &[agent::list::Agent]| -> Vec<_> { agents.iter().map(|agent| agent.paused.clone()).collect() };
        assert_eq!(pauses(&before), pauses(&after));
        assert_eq!(before.iter().map(|agent| agent.paused.is_some()).collect::<Vec<_>>(), [true, true, false]);
    }

    /// Polls and pauses at once: between the reply of a pause and the call of a resume no trigger begins.
    async fn no_trigger_begins_while_the_agent_is_paused(world: World) {
        world.join("bob", agent::Role::Worker).await;
        let item = |n: usize| task::plan::Item { title: n.to_string(), ..Default::default() };
        let plan = task::Plan { board: Some("auth".into()), tasks: (0..1000).map(item).collect(), request: None };
        world.fleet.call(plan).await.unwrap();
        let (stop, given) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let other = world.again().await;
        let pollers: Vec<_> = (0..6)
            .map(|i| {
                let fleet = if i % 2 == 0 { world.fleet.clone() } else { other.clone() };
                let (stop, given) = (stop.clone(), given.clone());
                tokio::spawn(async move {
                    for n in 0.. {
                        if stop.load(Ordering::SeqCst) {
                            break;
                        }
                        let run = format!("b{i}-{n}");
                        match fleet.call(poll("bob", &run)).await {
                            Ok(polled) if polled.trigger.is_some() => {
                                given.fetch_add(1, Ordering::SeqCst);
                                let end = run::Settle { run, outcome: run::settle::Outcome::Released, ..Default::default() };
                                // A pause may have ended it.
                                let _ = fleet.call(end).await;
                            }
                            Ok(_) => panic!("the pool has tasks"),
                            Err(error) => assert_eq!(error.code(), Code::Paused, "{error:?}"),
                        }
                    }
                })
            })
            .collect();
        for round in 0..20 {
            let before = given.load(Ordering::SeqCst);
            eventually("triggers begin", async || given.load(Ordering::SeqCst) > before).await;
            world.fleet.call(agent::Pause { now: round % 2 == 0, ..pause("bob") }).await.unwrap();
            let begun = world.times("run.triggered").await;
            // The pollers go on meanwhile.
            for _ in 0..5 {
                assert_eq!(code(other.call(poll("bob", "probe")).await), Code::Paused);
            }
            assert_eq!(world.times("run.triggered").await, begun, "round {round}");
            world.fleet.call(resume("bob")).await.unwrap();
        }
        stop.store(true, Ordering::SeqCst);
        for poller in pollers {
            tokio::time::timeout(PATIENCE, poller).await.expect("it ends").unwrap();
        }
    }
}

/// A poll has taken a task and has not committed. The pause waits for it, and ends its trigger. A poll that begins meanwhile waits
/// for the pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_waits_for_polls_under_way() {
    let world = World::postgres().await;
    for limit in [None, Some(3)] {
        let join = agent::Join { agent: "bob".into(), max_concurrent: limit, ..Default::default() };
        world.fleet.call(join).await.unwrap();
        world.add("one").await;
        let [first, second] = ["first", "second"].map(|run| format!("{run}-{}", limit.is_some()));
        let polled = run_to_commit(&world, poll("bob", &first)).await;
        let paused = start(&world.fleet, agent::Pause { now: true, ..pause("bob") });
        assert!(polled.holds_up(&world, &paused).await, "the pause waits");
        assert!(polled.commit().await.unwrap().trigger.is_some());
        assert_eq!(paused.await.unwrap().unwrap().ended, [first]);
        world.fleet.call(resume("bob")).await.unwrap();

        let paused = run_to_commit(&world, pause("bob")).await;
        let polled = start(&world.fleet, poll("bob", &second));
        assert!(paused.holds_up(&world, &polled).await, "the poll waits");
        paused.commit().await.unwrap();
        assert_eq!(code(polled.await.unwrap()), Code::Paused);
        world.fleet.call(resume("bob")).await.unwrap();
    }
    world.assert_sound().await;
}
