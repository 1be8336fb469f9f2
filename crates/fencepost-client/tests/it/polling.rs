//! Polls that race: every trigger reaches exactly one run, whichever server it asks.

use crate::{consumer::LIMIT, on_every_fleet};
use fencepost::{
    Code, Fleet,
    agent::{self, Poll, Role, Trigger, Type},
    channel, claim, inbox, run, storm, task,
};
use fencepost_client::Connection;
use fencepost_testing::world::code;
use futures_util::future::join_all;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::Barrier;

/// Everything that a poll claims.
pub const KINDS: [Type; 7] = Type::ORDER;

/// The agent for triggers of this kind: each kind has its own.
pub fn agent_of(kind: Type) -> String {
    kind.as_str().replace('_', "-")
}

/// A poll for one kind of trigger.
pub fn poll(kind: Type, run: impl Into<String>) -> Poll {
    Poll { agent: agent_of(kind), run: run.into(), accept: Some(vec![kind]), ..Default::default() }
}

pub async fn join(fleet: &Fleet, kind: Type) {
    let role = if kind == Type::TasksFinished { Role::Lead } else { Role::Worker };
    let join = agent::Join { agent: agent_of(kind), role: Some(role), ..Default::default() };
    fleet.call(join).await.expect("joined");
}

/// Makes so many items of a kind.
pub async fn seed(fleet: &Fleet, kind: Type, count: usize) {
    let agent = agent_of(kind);
    match kind {
        Type::InboxMessage => {
            let send = |i| inbox::Send { agent: agent.clone(), text: format!("m{i}"), ..Default::default() };
            for sent in join_all((0..count).map(|i| fleet.call(send(i)))).await {
                sent.expect("sent");
            }
        }
        Type::UnreadMentions => {
            let talk = |i| {
                let (channel, body) = (format!("c{i}"), format!("@{agent}"));
                async move {
                    fleet.call(channel::Create { channel: channel.clone(), ..Default::default() }).await?;
                    fleet.call(channel::Post { channel, body, ..Default::default() }).await
                }
            };
            for posted in join_all((0..count).map(talk)).await {
                posted.expect("posted");
            }
        }
        Type::UnreadWakeup => {
            // As many as there are may run at once.
            let most = [
                storm::Setting::BreakerBacklogThreshold,
                storm::Setting::MaxActiveGlobal,
                storm::Setting::MaxActivePerAgent,
            ];
            let values = most.into_iter().map(|setting| (setting, Some(1000))).collect();
            fleet.call(storm::Set { values, channel: None, source: None }).await.expect("set");
            for i in 0..count {
                let channel = format!("w{i}");
                fleet
                    .call(channel::Create { channel: channel.clone(), ..Default::default() })
                    .await
                    .expect("created");
                let join = channel::Join { channel: channel.clone(), agent: agent.clone() };
                fleet.call(join).await.expect("a member");
                fleet
                    .call(channel::Post { channel, body: "news".into(), ..Default::default() })
                    .await
                    .expect("posted");
            }
            // A server may tick at the same time.
            while fleet.call(storm::Due {}).await.expect("an answer").due {
                match fleet.call(storm::Tick {}).await {
                    Ok(_) => tokio::task::yield_now().await,
                    Err(error) => assert_eq!(error.code(), Code::Unavailable, "{error:?}"),
                }
            }
        }
        _ => {
            let to = (kind == Type::TaskAssigned).then(|| agent.clone());
            let offer = (kind == Type::TaskOffered).then(|| agent.clone());
            let item = |i| task::plan::Item {
                title: format!("t{i}"),
                to: to.clone(),
                offer: offer.clone(),
                ..Default::default()
            };
            let plan = task::Plan {
                board: Some(agent.clone()),
                tasks: (0..count).map(item).collect(),
                ..Default::default()
            };
            fleet.call(plan).await.expect("planned");
            if kind == Type::TasksFinished {
                finish(fleet, &agent, count).await;
            }
        }
    }
}

async fn finish(fleet: &Fleet, board: &str, count: usize) {
    let many = task::ClaimMany {
        count: count as i64,
        board: Some(board.into()),
        run: "finisher".into(),
        ..Default::default()
    };
    let claimed = fleet.call(many).await.expect("claimed").claims;
    assert_eq!(claimed.len(), count);
    let done = claimed
        .into_iter()
        .map(|claimed| task::done_many::Completion { token: claimed.claim.token, output: None })
        .collect();
    fleet.call(task::DoneMany { tasks: done }).await.expect("completed");
}

/// The items of a trigger, by unique names.
fn items(trigger: &Trigger) -> Vec<String> {
    match trigger.kind {
        Type::TasksFinished => trigger.tasks.iter().map(|task| task.id.clone()).collect(),
        Type::UnreadWakeup => vec![trigger.claims[0].resource.clone()],
        _ => trigger.claims.iter().map(|claim| claim.resource.clone()).collect(),
    }
}

/// Polls all at once, over all connections. Returns the trigger of each.
async fn at_once(connections: &[Connection], polls: Vec<Poll>) -> Vec<fencepost::Result<Option<Trigger>>> {
    let start = Arc::new(Barrier::new(polls.len()));
    let calls: Vec<_> = polls
        .into_iter()
        .enumerate()
        .map(|(i, poll)| {
            let (fleet, start) = (connections[i % connections.len()].clone(), start.clone());
            tokio::spawn(async move {
                start.wait().await;
                Ok(fleet.call(poll).await?.trigger)
            })
        })
        .collect();
    join_all(calls).await.into_iter().map(|call| call.expect("no panic")).collect()
}

on_every_fleet! {
    /// For each kind fifty items (of finished tasks, more than fit into one trigger) and sixteen polls at once.
    async fn each_item_is_in_exactly_one_answer(setup: Setup) {
        let connections = [setup.fleet.clone(), setup.other().await];
        for kind in KINDS {
            join(&setup.world.fleet, kind).await;
            let count = if kind == Type::TasksFinished { 120 } else { 50 };
            seed(&setup.world.fleet, kind, count).await;
            let start = Arc::new(Barrier::new(16));
            let pollers: Vec<_> = (0..16)
                .map(|i| {
                    let (fleet, start) = (connections[i % 2].clone(), start.clone());
                    tokio::spawn(async move {
                        start.wait().await;
                        let mut given = Vec::new();
                        for n in 0.. {
                            let polled = fleet.call(poll(kind, format!("{kind:?}-{i}-{n}"))).await.unwrap();
                            let Some(trigger) = polled.trigger else { break };
                            assert_eq!(trigger.kind, kind);
                            given.extend(items(&trigger));
                        }
                        given
                    })
                })
                .collect();
            let mut given = Vec::new();
            for poller in pollers {
                given.extend(poller.await.unwrap());
            }
            let distinct: BTreeSet<_> = given.iter().collect();
            assert_eq!((given.len(), distinct.len()), (count, count), "{kind:?}");
        }
    }

    /// A poll repeated with its run returns the same trigger: to all that poll at once, on any server, even the first
    /// time.
    async fn a_lost_answer_is_returned_again(setup: Setup) {
        let connections = [setup.fleet.clone(), setup.other().await];
        for kind in KINDS {
            join(&setup.world.fleet, kind).await;
            seed(&setup.world.fleet, kind, 8).await;
            let run = format!("run-{}", kind.as_str());
            let answers = at_once(&connections, vec![poll(kind, &run); 6]).await;
            let first = answers[0].as_ref().unwrap().clone().expect("a trigger");
            assert_eq!(first.run, run);
            if kind == Type::UnreadMentions {
                // Another run of the agent reads meanwhile: the trigger stays the same.
                let read = channel::Read { channel: "c0".into(), agent: agent_of(kind), ..Default::default() };
                assert_eq!(setup.fleet.call(read).await.unwrap().cursor, 0);
            }
            for answer in answers.into_iter().chain(at_once(&connections, vec![poll(kind, &run); 6]).await) {
                assert_eq!(answer.unwrap().as_ref(), Some(&first), "{kind:?}");
            }
            let rest = setup.fleet.call(poll(kind, format!("{run}-2"))).await.unwrap().trigger;
            let both: Vec<_> = rest.iter().chain([&first]).flat_map(items).collect();
            assert_eq!(both.iter().collect::<BTreeSet<_>>().len(), both.len(), "{kind:?}: {both:?}");
        }
        assert_eq!(setup.world.times("run.triggered").await, 7 + 5, "two kinds were given whole");
    }

    /// The lease of a killed run expires: its items go to one other run, and its own late calls are refused.
    async fn a_dead_runs_item_comes_back_once(setup: Setup) {
        let connections = [setup.fleet.clone(), setup.other().await];
        // Notices first: finished tasks of the other kinds make more of them.
        let notices_first = [Type::TasksFinished].into_iter().chain(KINDS.into_iter().filter(|&kind| kind != Type::TasksFinished));
        for kind in notices_first {
            let fleet = &setup.fleet;
            join(&setup.world.fleet, kind).await;
            seed(&setup.world.fleet, kind, 1).await;
            let name = |what: &str| format!("{}-{what}", kind.as_str());
            let dead = fleet.call(poll(kind, name("dead"))).await.unwrap().trigger.expect("a trigger");
            setup.world.pass(59);
            assert_eq!(fleet.call(poll(kind, name("early"))).await.unwrap().trigger, None, "{kind:?}");
            setup.world.pass(1);
            let polls = (0..6).map(|i| poll(kind, name(&i.to_string()))).collect();
            let answers: Vec<_> = at_once(&connections, polls).await.into_iter().map(Result::unwrap).collect();
            let given: Vec<_> = answers.into_iter().flatten().collect();
            assert_eq!(given.len(), 1, "{kind:?}: it came back {} times", given.len());
            assert_eq!(items(&given[0]), items(&dead));
            assert_eq!(given[0].claims[0].fence, dead.claims[0].fence + 1);
            late_answers(fleet, &dead).await;
            accept(fleet, &given[0]).await;
            let settled = fleet.call(run::Settle { run: given[0].run.clone(), ..Default::default() }).await.unwrap();
            let settles = match kind {
                Type::TaskOffered => 0,
                // The message, and the place in the channel.
                Type::UnreadWakeup => 2,
                _ => 1,
            };
            assert_eq!(settled.settled.len(), settles, "{kind:?}");
            late_answers(fleet, &dead).await;
            assert_eq!(code(fleet.call(poll(kind, name("dead"))).await), Code::LeaseExpired);
            setup.world.pass(60);
            assert_eq!(fleet.call(poll(kind, name("late"))).await.unwrap().trigger, None, "{kind:?}: once");
        }
    }

    async fn an_agent_never_exceeds_its_limit_of_triggers(setup: Setup) {
        let connections = [setup.fleet.clone(), setup.other().await];
        for kind in KINDS {
            join(&setup.world.fleet, kind).await;
            let limit = agent::Join { agent: agent_of(kind), max_concurrent: Some(3), ..Default::default() };
            setup.world.fleet.call(limit).await.unwrap();
            // Enough for more than three triggers, however many items one has.
            let count = match kind {
                Type::TasksFinished => 201,
                Type::UnreadMentions => 81,
                _ => 21,
            };
            seed(&setup.world.fleet, kind, count).await;
            let polls = (0..16).map(|i| poll(kind, format!("{kind:?}-{i}"))).collect();
            let answers: Vec<_> = at_once(&connections, polls).await.into_iter().map(Result::unwrap).collect();
            let mut given: Vec<_> = answers.into_iter().flatten().collect();
            assert_eq!(given.len(), 3, "{kind:?}");
            let more = setup.fleet.call(poll(kind, format!("{kind:?}-more"))).await.unwrap();
            assert!(more.trigger.is_none() && more.held_back.is_some_and(|why| why.contains("has 3 triggers")));
            // One that ends makes room for one.
            let run = given.remove(0).run;
            setup.fleet.call(run::End { run, ..Default::default() }).await.unwrap();
            let polls = (0..4).map(|i| poll(kind, format!("{kind:?}-again-{i}"))).collect();
            let answers = at_once(&connections, polls).await;
            assert_eq!(answers.iter().filter(|answer| answer.as_ref().unwrap().is_some()).count(), 1, "{kind:?}");
        }
    }

    /// The seed document's load test: two agents with up to three triggers each, more processes that poll for them, and
    /// triggers of every kind. The first run of each agent dies.
    async fn the_seeds_load_is_processed_once_each(setup: Setup) {
        let fleet = &setup.world.fleet;
        setup.story("
            agent/join bob max_concurrent=3             -> agent.max_concurrent=3
            agent/join lead role=lead max_concurrent=3  -> agent.role=lead
            agent/join eve                              -> agent.name=eve
        ").await;
        for i in 0..5 {
            setup.story(&format!("
                add pool-{i}                                          -> status=unassigned
                add mine-{i} to=bob                                   -> status=pending
                add maybe-{i} offer=bob                               -> status=offered
                add yours-{i} to=lead                                 -> status=pending
                inbox/send bob text=b{i}                              -> item.status=unread
                inbox/send lead text=l{i}                             -> item.status=unread
                channel/create c{i}                                   -> existing=false
                channel/post c{i} body=@bob,@lead author=eve          -> post.n=1
            ")).await;
        }
        let load = Arc::new(Load { left: AtomicUsize::new(20), ..Load::default() });
        let connections = [setup.fleet.clone(), setup.other().await];
        for (agent, way) in ["bob", "lead"].into_iter().zip(&connections) {
            let poll = Poll { agent: agent.into(), run: format!("{agent}-dies"), ..Default::default() };
            assert!(way.call(poll).await.unwrap().trigger.is_some(), "{agent}");
        }
        let runners: Vec<_> = (0..10)
            .map(|i| {
                let (fleet, load) = (connections[i % 2].clone(), load.clone());
                let agent = if i % 3 == 2 { "lead" } else { "bob" };
                tokio::spawn(async move { load.work(&fleet, agent, &format!("{agent}-{i}")).await })
            })
            .collect();
        // Nobody else gets the dead runs' items until their leases expire. (The other runs are between two triggers then.)
        let middle = async {
            while load.handled.load(Ordering::SeqCst) < 10 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            let _between = load.at_work.write().await;
            setup.world.pass(60);
        };
        tokio::time::timeout(LIMIT, middle).await.expect("the others work on");
        for runner in runners {
            tokio::time::timeout(LIMIT, runner).await.expect("all is handled").unwrap();
        }
        // Bob's 15 tasks make 15 notices; the lead's own make none.
        for (kind, times) in [("task.completed", 20), ("mentions.read", 10), ("message.completed", 25)] {
            assert_eq!(setup.world.times(kind).await, times, "{kind}");
        }
        let runs = fleet.call(run::List::default()).await.unwrap().runs;
        assert!(runs.is_empty(), "{runs:?}");
    }
}

/// The workers of the load test, and what is left to do: notices that the lead has received.
#[derive(Default)]
struct Load {
    handled: AtomicUsize,
    at_work: tokio::sync::RwLock<()>,
    left: AtomicUsize,
}

impl Load {
    async fn work(&self, fleet: &Connection, agent: &str, name: &str) {
        for n in 0.. {
            if self.left.load(Ordering::SeqCst) == 0 {
                return;
            }
            let at_work = self.at_work.read().await;
            let poll = Poll { agent: agent.into(), run: format!("{name}-{n}"), ..Default::default() };
            let Some(trigger) = fleet.call(poll).await.unwrap().trigger else {
                drop(at_work);
                // Real time: the others are working.
                tokio::time::sleep(Duration::from_millis(2)).await;
                continue;
            };
            let living = fleet.call(agent::List::default()).await.unwrap();
            let busy = living.agents.into_iter().find(|one| one.name == agent).unwrap().runs.len();
            assert!(busy <= 3, "{agent} has {busy}");
            for claim in &trigger.claims {
                assert!(fleet.call(claim::Guard::new(&claim.token)).await.unwrap().ok);
            }
            accept(fleet, &trigger).await;
            fleet.call(run::Settle { run: trigger.run.clone(), ..Default::default() }).await.unwrap();
            self.handled.fetch_add(1, Ordering::SeqCst);
            let notices =
                trigger.tasks.len() + usize::from(trigger.kind == Type::TaskAssigned && agent == "lead");
            self.left.fetch_sub(notices, Ordering::SeqCst);
        }
    }
}

/// Accepts an offer, so that nothing is left to review.
async fn accept(fleet: &Connection, trigger: &Trigger) {
    if let (Type::TaskOffered, Some(task)) = (trigger.kind, &trigger.task) {
        let accept = task::Accept {
            task: task.id.clone(),
            agent: trigger.claims[0].agent.clone().expect("its agent"),
            token: Some(trigger.claims[0].token.clone()),
            request: None,
        };
        fleet.call(accept).await.expect("accepted");
    }
}

/// Checks that every late call of the dead run is refused.
async fn late_answers(fleet: &Connection, dead: &Trigger) {
    for outcome in [run::settle::Outcome::Done, run::settle::Outcome::Failed, run::settle::Outcome::Released]
    {
        let settle = run::Settle { run: dead.run.clone(), outcome, ..Default::default() };
        assert_eq!(code(fleet.call(settle).await), Code::LeaseExpired, "{outcome:?}");
    }
    let token = &dead.claims[0].token;
    let agent = agent_of(dead.kind);
    let mut calls = vec![
        ("claim/release", serde_json::json!({ "token": token })),
        ("claim/renew", serde_json::json!({ "token": token })),
    ];
    match dead.kind {
        Type::TaskOffered | Type::TaskAssigned | Type::PoolTask => {
            let task = &dead.task.as_ref().expect("a task").id;
            calls.push(("task/done", serde_json::json!({ "token": token })));
            calls.push(("task/fail", serde_json::json!({ "token": token, "reason": "x" })));
            calls.push(("task/progress", serde_json::json!({ "token": token, "text": "x" })));
            if dead.kind == Type::TaskOffered {
                calls.push((
                    "task/accept",
                    serde_json::json!({ "task": task, "agent": agent, "token": token }),
                ));
                calls.push((
                    "task/reject",
                    serde_json::json!({ "task": task, "agent": agent, "token": token, "reason": "x" }),
                ));
            }
        }
        Type::InboxMessage => {
            calls.push(("inbox/read", serde_json::json!({ "message": token })));
            calls.push(("inbox/respond", serde_json::json!({ "message": token, "text": "x" })));
            calls.push(("inbox/delegate", serde_json::json!({ "message": token })));
            calls.push(("mail/done", serde_json::json!({ "token": token })));
        }
        Type::TasksFinished => calls.push(("mail/done", serde_json::json!({ "token": token }))),
        Type::UnreadWakeup => {
            calls.push(("mail/done", serde_json::json!({ "token": token })));
            let save = serde_json::json!({ "token": token, "ordinal": 1, "phase": storm::DELIVERED });
            calls.push(("mail/checkpoint", save));
            let (channel, place) = (&dead.channels[0].channel, &dead.claims[1].token);
            let read = serde_json::json!({ "channel": channel, "agent": agent, "token": place });
            calls.push(("channel/read", read));
        }
        Type::UnreadMentions | Type::PoolTasksAvailable => {
            let read =
                serde_json::json!({ "channel": dead.channels[0].channel, "agent": agent, "token": token });
            calls.push(("channel/read", read));
        }
    }
    for (op, request) in calls {
        let said = code(fleet.call_by_name(op, &request.to_string()).await);
        // A decided offer is no longer one.
        let decided = said == Code::NotReady && matches!(op, "task/accept" | "task/reject");
        assert!(
            decided || matches!(said, Code::LeaseExpired | Code::AlreadyFinished),
            "{op} {request}: {said:?}"
        );
    }
}
