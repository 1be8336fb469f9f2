//! Spend limits: at a limit work is held back, not lost.

use crate::waiting::{answer, parked, waits};
use fencepost::{Access, Code, Error, Fleet, Millis, Result, agent, key, op, run, spend, task};
use fencepost_testing::{World, eventually, on_both, world::code};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::task::JoinHandle;

const DAY: i64 = 86_400_000;

/// The scope of a limit.
#[derive(Debug, Clone, Copy)]
enum Of {
    Fleet,
    Agent(&'static str),
    Board(&'static str),
}

async fn try_limit(fleet: &Fleet, of: Of, limits: Value, window: Option<i64>) -> Result<spend::set::WereSet> {
    let (agent, board) = match of {
        Of::Fleet => (None, None),
        Of::Agent(name) => (Some(name.to_owned()), None),
        Of::Board(name) => (None, Some(name.to_owned())),
    };
    let limits = serde_json::from_value(limits).expect("limits");
    fleet.call(spend::Set { limits, agent, board, window_ms: window.map(Millis) }).await
}

async fn limit(world: &World, of: Of, limits: Value) {
    try_limit(&world.fleet, of, limits, None).await.expect("set");
}

fn poll(agent: &str, run: &str) -> agent::Poll {
    let ttl_ms = Some(Millis::days(2));
    agent::Poll { agent: agent.into(), run: run.into(), ttl_ms, ..Default::default() }
}

fn polls(world: &World, agent: &str, run: &str, seconds: i64) -> JoinHandle<Result<agent::poll::Polled>> {
    waits(&world.fleet, agent::Poll { wait_ms: Some(Millis::seconds(seconds)), ..poll(agent, run) })
}

/// The first claim of a poll's trigger, or `nothing`.
async fn polled(fleet: &Fleet, agent: &str, run: &str) -> Result<String> {
    let polled = fleet.call(poll(agent, run)).await?;
    Ok(polled.trigger.map_or("nothing".into(), |trigger| trigger.claims[0].token.clone()))
}

async fn refusal(fleet: &Fleet, agent: &str, run: &str) -> Error {
    let error = polled(fleet, agent, run).await.expect_err("at the limit");
    assert_eq!(error.code(), Code::BudgetRefused, "{error:?}");
    error
}

async fn try_settle(fleet: &Fleet, run: &str, cost: Value) -> Result<run::Run> {
    let settle = run::Settle { run: run.into(), cost: Some(cost), ..Default::default() };
    Ok(fleet.call(settle).await?.run)
}

async fn settle(world: &World, run: &str, cost: Value) {
    try_settle(&world.fleet, run, cost).await.expect("settled");
}

/// Bob polls and settles at this cost.
async fn spent(world: &World, run: &str, cost: Value) {
    assert!(polled(&world.fleet, "bob", run).await.expect("below the limit").starts_with("task/"));
    settle(world, run, cost).await;
}

async fn tasks(world: &World, board: &str, count: usize) {
    for n in 0..count {
        world.fleet.call(task::Add::new(board, format!("task {n}"))).await.expect("added");
    }
}

async fn shown(fleet: &Fleet) -> spend::show::Shown {
    fleet.call(spend::Show::default()).await.expect("shown")
}

/// Bob, and a pool of ten tasks.
async fn with_work(world: &World) {
    world.join("bob", agent::Role::Worker).await;
    tasks(world, "auth", 10).await;
}

on_both! {
    /// Three thirds of a dollar, each rounded down, are not a dollar. One millionth more is.
    async fn a_limit_of_dollars_is_exact(world: World) {
        with_work(&world).await;
        limit(&world, Of::Agent("bob"), json!({ "usd": 1.00 })).await;
        for run in ["b1", "b2", "b3"] {
            spent(&world, run, json!({ "usd": 0.333333 })).await;
        }
        let left = |shown: spend::show::Shown| {
            let limit = shown.limits[0].clone();
            (limit.used.to_string(), limit.left.to_string(), limit.reached)
        };
        assert_eq!(left(shown(&world.fleet).await), ("0.999999".into(), "1e-6".into(), false));
        spent(&world, "b4", json!({ "usd": 0.000001 })).await;
        assert_eq!(left(shown(&world.fleet).await), ("1.0".into(), "0.0".into(), true));
        let error = refusal(&world.fleet, "bob", "b5").await;
        let fields = ["scope", "what", "limit", "used", "retry_after_ms"].map(|field| error.field(field).cloned());
        let expected = [json!("agent/bob"), json!("usd"), json!(1.0), json!(1.0), json!(DAY)].map(Some);
        assert_eq!(fields, expected);
        assert!(error.message().starts_with("agent `bob` is at its spend limit: $1.00 of $1.00 in 1d"), "{error}");
        assert!(error.hint_text().unwrap().contains("fence spend set --agent bob --usd AMOUNT"), "{error:?}");
    }

    /// At exactly the end of the window a trigger no longer counts. The time of the trigger counts, not of its end.
    async fn a_window_is_exact_to_the_millisecond(world: World) {
        with_work(&world).await;
        try_limit(&world.fleet, Of::Agent("bob"), json!({ "runs": 2 }), Some(60_000)).await.unwrap();
        spent(&world, "b1", json!({})).await;
        world.pass(20);
        spent(&world, "b2", json!({})).await;
        world.pass(39);
        world.clock.advance(Duration::from_millis(999));
        let error = refusal(&world.fleet, "bob", "b3").await;
        assert_eq!(error.field("retry_after_ms"), Some(&json!(1)));
        world.clock.advance(Duration::from_millis(1));
        spent(&world, "b3", json!({})).await;
        let error = refusal(&world.fleet, "bob", "b4").await;
        assert_eq!(error.field("retry_after_ms"), Some(&json!(20_000)));
        assert_eq!(shown(&world.fleet).await.limits[0].frees_at.unwrap().to_string(), "2026-01-01T12:01:20.000Z");
    }

    /// Every scope with every kind: the scope's own triggers count, and no others.
    async fn each_scope_and_kind(world: World) {
        for name in ["bob", "eve"] {
            world.join(name, agent::Role::Worker).await;
        }
        tasks(&world, "auth", 30).await;
        tasks(&world, "docs", 30).await;
        let mut n = 0;
        let mut run = || {
            n += 1;
            format!("r{n}")
        };
        let take = async |agent: &str, board: &str, run: &str| {
            let op = agent::Poll { board: Some(board.into()), ..poll(agent, run) };
            let given = world.fleet.call(op).await?.trigger.expect("a trigger");
            settle(&world, run, json!({ "usd": 0.5, "tokens_in": 30, "tokens_out": 20 })).await;
            Ok::<_, Error>(given.task.expect("a task").board)
        };
        for limits in [json!({ "runs": 2 }), json!({ "tokens": 100 }), json!({ "usd": 1 })] {
            let removed: Value = limits.as_object().unwrap().keys().map(|what| (what.clone(), Value::Null)).collect();
            for (of, refused, taken) in [
                (Of::Agent("bob"), ("bob", "docs"), vec![("eve", "auth"), ("eve", "docs")]),
                (Of::Board("auth"), ("eve", "auth"), vec![("bob", "docs"), ("eve", "docs")]),
                (Of::Fleet, ("eve", "docs"), vec![]),
            ] {
                limit(&world, of, limits.clone()).await;
                for _ in 0..2 {
                    assert_eq!(take("bob", "auth", &run()).await.unwrap(), "auth", "{of:?} {limits}");
                }
                let error = take(refused.0, refused.1, &run()).await.unwrap_err();
                assert_eq!(error.code(), Code::BudgetRefused, "{of:?} {limits}");
                for (agent, board) in taken {
                    assert_eq!(take(agent, board, &run()).await.unwrap(), board, "{of:?} {limits}");
                }
                limit(&world, of, removed.clone()).await;
                assert_eq!(take(refused.0, refused.1, &run()).await.unwrap(), refused.1);
                world.pass(86_400);
            }
        }
    }

    /// At its limit an agent gets nothing, loses nothing, and gets everything in the usual order afterwards.
    async fn held_work_is_not_lost(world: World) {
        limit(&world, Of::Fleet, json!({ "runs": 1 })).await;
        world.story("
            agent/join bob                          -> agent.online=true
            add first to=bob                        -> auth-1
            add mine to=bob                         -> auth-2
            add maybe offer=bob                     -> auth-3
            add pool                                -> auth-4
            inbox/send bob text=hello               -> item.id=1
            agent/poll bob run=b1                   -> type=task_offered
            agent/poll bob run=b1                   -> type=task_offered
            agent/poll bob run=b2                   -> refused budget_refused scope=fleet what=runs
            +60s agent/poll bob run=b2              -> refused budget_refused retry_after_ms=86340000
            claim auth-4 run=hand                   -> refused budget_refused
            claim run=hand                          -> refused budget_refused
        ").await;
        for task in ["auth-1", "auth-2", "auth-4"] {
            let task = world.show(task).await;
            assert_eq!((task.attempts, task.claim), (0, None), "{}", task.id);
        }
        limit(&world, Of::Fleet, json!({ "runs": null })).await;
        world.story("
            agent/poll bob run=b2                   -> type=task_offered
            agent/poll bob run=b3                   -> claims=task/auth-1@1
            agent/poll bob run=b4                   -> claims=task/auth-2@1
            agent/poll bob run=b5                   -> type=inbox_message
            agent/poll bob run=b6                   -> claims=task/auth-4@1
        ").await;
    }

    /// Tasks of a board at its limit are left alone, in every way to get one; other work is taken.
    async fn a_board_at_its_limit(world: World) {
        world.story("
            agent/join bob                          -> agent.online=true
            agent/join ann capabilities=rust        -> agent.online=true
            add first                               -> auth-1
            add pool priority=90                    -> auth-2
            add with-tag tags=rust                  -> auth-3
            add mine to=bob                         -> auth-4
            add maybe offer=bob                     -> auth-5
            add other board=docs                    -> docs-1
            add with-tag board=docs tags=rust       -> docs-2
            add mine board=docs to=bob priority=10  -> docs-3
            add other board=docs                    -> docs-4
        ").await;
        limit(&world, Of::Board("auth"), json!({ "runs": 1 })).await;
        world.story("
            agent/poll bob run=b1 accept=pool_task  -> claims=task/auth-2@1
            claim auth-1 run=hand                   -> refused budget_refused scope=board/auth
            claim run=hand                          -> refused budget_refused scope=board/auth
            agent/poll bob run=b2 board=auth        -> claims=task/docs-3@1
            agent/poll bob run=b3 board=auth        -> refused budget_refused scope=board/auth
            agent/poll bob run=b3 accept=task_assigned -> refused budget_refused
            agent/poll bob run=b3 accept=task_offered -> refused budget_refused
            agent/poll bob run=b3 accept=inbox_message -> trigger=none
            agent/poll bob run=b3 pool=off accept=pool_task -> trigger=none
            agent/poll ann run=a1 tag=rust          -> claims=task/docs-2@1
            agent/poll ann run=a2 tag=rust          -> refused budget_refused
            agent/poll ann run=a2 pool=notify       -> type=pool_tasks_available count=2
            task/claim run=any1                     -> task/docs-1@1
            agent/poll ann run=a3                   -> claims=task/docs-4@1
            agent/poll ann run=a4                   -> refused budget_refused
            agent/poll ann run=a4 pool=notify       -> refused budget_refused
            task/claim run=any2                     -> refused budget_refused scope=board/auth
            task/claim run=any2 agent=bob tag=rust  -> refused budget_refused
            task/claim run=any2 tag=other           -> refused none_ready
            inbox/send bob text=hello               -> item.id=1
            agent/poll bob run=b4                   -> type=inbox_message
        ").await;
        let many = |board: Option<&str>| task::ClaimMany {
            count: 5, run: "many".into(), board: board.map(str::to_owned), ..Default::default()
        };
        assert_eq!(code(world.fleet.call(many(None)).await), Code::BudgetRefused);
        assert_eq!(code(world.fleet.call(many(Some("auth"))).await), Code::BudgetRefused);
        tasks(&world, "docs", 2).await;
        tasks(&world, "ops", 2).await;
        let claimed = world.fleet.call(many(None)).await.unwrap().claims;
        let claimed: Vec<_> = claimed.into_iter().map(|claimed| claimed.task.id).collect();
        assert_eq!(claimed, ["docs-5", "docs-6", "ops-1", "ops-2"]);
        limit(&world, Of::Board("auth"), json!({ "runs": 2 })).await;
        assert_eq!(polled(&world.fleet, "ann", "a5").await.unwrap(), "task/auth-1@1");
        world.story("
            +86400s agent/poll bob run=b5 accept=task_offered -> type=task_offered
            agent/poll bob run=b6 accept=task_assigned -> claims=task/auth-4@1
        ").await;
    }

    /// Of several boards at their limits the refusal names the one that frees first and has work for the agent.
    async fn the_first_board_to_free_is_named(world: World) {
        world.join("bob", agent::Role::Worker).await;
        for board in ["a", "b", "c"] {
            tasks(&world, board, if board == "c" { 1 } else { 2 }).await;
        }
        for (run, board) in [("r-c", "c"), ("r-a", "a"), ("r-b", "b")] {
            let op = agent::Poll { board: Some(board.into()), ..poll("bob", run) };
            world.fleet.call(op).await.unwrap().trigger.expect("a trigger");
            world.pass(60);
        }
        for board in ["a", "b", "c"] {
            limit(&world, Of::Board(board), json!({ "runs": 1 })).await;
        }
        let error = refusal(&world.fleet, "bob", "r1").await;
        assert_eq!(error.field("scope"), Some(&json!("board/a")));
        assert_eq!(error.field("retry_after_ms"), Some(&json!(DAY - 120_000)));
        // Two limits of one board: the last of them counts.
        try_limit(&world.fleet, Of::Board("a"), json!({ "tokens": 0 }), None).await.unwrap();
        let error = refusal(&world.fleet, "bob", "r1").await;
        assert_eq!(error.field("scope"), Some(&json!("board/b")));
    }

    /// A raised limit is in force at once, and wakes every poll and claim that waits for it.
    async fn raising_a_limit_wakes_waiting_polls(world: World) {
        with_work(&world).await;
        world.join("eve", agent::Role::Worker).await;
        limit(&world, Of::Fleet, json!({ "runs": 1 })).await;
        limit(&world, Of::Board("auth"), json!({ "usd": 0 })).await;
        assert_eq!(refusal(&world.fleet, "bob", "b0").await.field("retry_after_ms"), None);
        let waiting = [polls(&world, "bob", "b1", 600), polls(&world, "eve", "e1", 600), polls(&world, "bob", "b2", 600)];
        let claim = task::Claim { wait_ms: Some(Millis::seconds(600)), ..task::Claim::next("auth", "hand") };
        let claim = waits(&world.fleet, claim);
        parked(&world.fleet, 4).await;
        limit(&world, Of::Fleet, json!({ "runs": 9 })).await;
        limit(&world, Of::Board("auth"), json!({ "usd": 5 })).await;
        for poll in waiting {
            assert!(answer(poll).await.unwrap().trigger.is_some());
        }
        answer(claim).await.unwrap();
        assert_eq!(world.times("spend.set").await, 4);
    }

    /// The clock alone frees a limit.
    async fn a_freed_limit_wakes_waiting_polls(world: World) {
        with_work(&world).await;
        try_limit(&world.fleet, Of::Agent("bob"), json!({ "runs": 1 }), Some(60_000)).await.unwrap();
        spent(&world, "b1", json!({})).await;
        let (short, long) = (polls(&world, "bob", "b2", 30), polls(&world, "bob", "b3", 600));
        let claim = task::Claim { agent: Some("bob".into()), wait_ms: Some(Millis::seconds(600)), ..task::Claim::next("auth", "hand") };
        let claim = waits(&world.fleet, claim);
        parked(&world.fleet, 3).await;
        world.pass(30);
        let error = answer(short).await.unwrap_err();
        assert_eq!((error.code(), error.field("retry_after_ms")), (Code::BudgetRefused, Some(&json!(30_000))));
        assert!(!long.is_finished() && !claim.is_finished());
        world.pass(30);
        assert!(answer(long).await.unwrap().trigger.is_some());
        // The trigger of the other poll may have come first: then the claim waits for another minute.
        world.pass(60);
        answer(claim).await.unwrap();
    }

    /// A board's limit frees while other polls wait for its tasks.
    async fn a_freed_board_wakes_waiting_polls(world: World) {
        with_work(&world).await;
        try_limit(&world.fleet, Of::Board("auth"), json!({ "runs": 1 }), Some(60_000)).await.unwrap();
        spent(&world, "b1", json!({})).await;
        let waiting = polls(&world, "bob", "b2", 600);
        parked(&world.fleet, 1).await;
        world.pass(60);
        assert!(answer(waiting).await.unwrap().trigger.is_some());
    }

    /// A cost is known when its run is settled: work in flight exceeds the limit by its cost, and is accepted.
    async fn work_in_flight_may_exceed_a_limit(world: World) {
        with_work(&world).await;
        limit(&world, Of::Agent("bob"), json!({ "usd": 1 })).await;
        for run in ["b1", "b2", "b3"] {
            polled(&world.fleet, "bob", run).await.unwrap();
        }
        settle(&world, "b1", json!({ "usd": 2.5 })).await;
        refusal(&world.fleet, "bob", "b4").await;
        // A repeated poll gets its trigger, and its work is accepted.
        assert_eq!(polled(&world.fleet, "bob", "b2").await.unwrap(), "task/auth-2@1");
        settle(&world, "b2", json!({ "usd": 2.5 })).await;
        settle(&world, "b3", json!({ "usd": 2.5 })).await;
        let limit = shown(&world.fleet).await.limits.remove(0);
        assert_eq!((limit.used.to_string().as_str(), limit.left.to_string().as_str()), ("7.5", "0.0"));
        // Of three triggers at the same time all leave the window at the same time.
        world.pass(86_400);
        polled(&world.fleet, "bob", "b4").await.unwrap();
    }

    /// A trigger that did not arrive counts for no limit.
    async fn an_undelivered_trigger_does_not_count(world: World) {
        with_work(&world).await;
        limit(&world, Of::Agent("bob"), json!({ "runs": 1 })).await;
        let served = op::find("agent/poll").unwrap().serve(&world.fleet, br#"{"agent":"bob","run":"b1"}"#).await.unwrap();
        refusal(&world.fleet, "bob", "b2").await;
        drop(served.delivery);
        eventually("the trigger is given back", async || shown(&world.fleet).await.fleet.runs == 0).await;
        assert_eq!(polled(&world.fleet, "bob", "b1").await.unwrap(), "task/auth-1@2");
        refusal(&world.fleet, "bob", "b2").await;
    }

    /// Limits and use are stored: another process, or one after a crash, agrees.
    async fn a_restart_forgets_nothing(world: World) {
        with_work(&world).await;
        limit(&world, Of::Agent("bob"), json!({ "usd": 0.30, "tokens": 1000 })).await;
        spent(&world, "b1", json!({ "usd": 0.1 })).await;
        spent(&world, "b2", json!({ "usd": 0.2 })).await;
        let error = refusal(&world.fleet, "bob", "b3").await;
        let again = world.again().await;
        assert_eq!(refusal(&again, "bob", "b3").await, error);
        assert_eq!(shown(&again).await, shown(&world.fleet).await);
        try_limit(&again, Of::Agent("bob"), json!({ "usd": 0.300001 }), None).await.unwrap();
        spent(&world, "b3", json!({ "usd": 0.000001 })).await;
        refusal(&again, "bob", "b4").await;
    }

    /// A run that settled itself without a cost is charged once.
    async fn a_cost_that_comes_later_is_counted(world: World) {
        with_work(&world).await;
        limit(&world, Of::Agent("bob"), json!({ "usd": 1 })).await;
        polled(&world.fleet, "bob", "b1").await.unwrap();
        world.fleet.call(run::Settle { run: "b1".into(), ..Default::default() }).await.unwrap();
        let charge = |usd: Value| run::Charge { run: "b1".into(), cost: json!({ "usd": usd }) };
        assert_eq!(code(world.fleet.call(charge(json!("much"))).await), Code::Invalid);
        let charged = world.fleet.call(charge(json!(1))).await.unwrap();
        assert_eq!(charged.run.cost, Some(json!({ "usd": 1 })));
        assert_eq!(world.fleet.call(charge(json!(5))).await.unwrap().run.cost, Some(json!({ "usd": 1 })));
        assert_eq!(refusal(&world.fleet, "bob", "b2").await.code(), Code::BudgetRefused);
        let unknown = run::Charge { run: "nobody".into(), cost: json!(1) };
        assert_eq!(code(world.fleet.call(unknown).await), Code::NotFound);
    }

    /// The three counted fields have types. Everything else is kept as it is.
    async fn costs_are_typed(world: World) {
        with_work(&world).await;
        polled(&world.fleet, "bob", "b1").await.unwrap();
        for (cost, field) in [
            (json!({ "usd": "0.12" }), "cost.usd"),
            (json!({ "usd": -1 }), "cost.usd"),
            (json!({ "tokens_in": 1.5 }), "cost.tokens_in"),
            (json!({ "tokens_out": [] }), "cost.tokens_out"),
        ] {
            let error = try_settle(&world.fleet, "b1", cost.clone()).await.unwrap_err();
            assert_eq!((error.code(), error.field("field")), (Code::Invalid, Some(&json!(field))), "{cost}");
        }
        let cost = json!({ "usd": 0.25, "tokens_in": 7, "tokens_out": 3, "session": "s-1", "model": { "usd": "x" } });
        assert_eq!(try_settle(&world.fleet, "b1", cost.clone()).await.unwrap().cost, Some(cost));
        for (run, cost) in [("b2", json!("two dollars")), ("b3", json!([1])), ("b4", json!({ "other": 1 })), ("b5", json!(7))] {
            polled(&world.fleet, "bob", run).await.unwrap();
            assert_eq!(try_settle(&world.fleet, run, cost.clone()).await.unwrap().cost, Some(cost));
        }
        let shown = shown(&world.fleet).await;
        let all = json!({ "runs": 5, "tokens_in": 7, "tokens_out": 3, "usd": 0.25 });
        assert_eq!(json!(shown.fleet), all);
        assert_eq!(json!(shown.agents), json!([{ "name": "bob", "runs": 5, "tokens_in": 7, "tokens_out": 3, "usd": 0.25 }]));
        assert_eq!(json!(shown.boards), json!([{ "name": "auth", "runs": 5, "tokens_in": 7, "tokens_out": 3, "usd": 0.25 }]));
    }

    /// Who may set a limit, and what is refused.
    async fn limits_are_checked(world: World) {
        with_work(&world).await;
        let invalid = async |of, limits, window, field: &str| {
            let error = try_limit(&world.fleet, of, limits, window).await.unwrap_err();
            assert_eq!((error.code(), error.field("field")), (Code::Invalid, Some(&json!(field))), "{error:?}");
        };
        invalid(Of::Fleet, json!({}), None, "limits").await;
        invalid(Of::Fleet, json!({ "usd": 0.0000001 }), None, "limits.usd").await;
        invalid(Of::Fleet, json!({ "usd": -1 }), None, "limits.usd").await;
        invalid(Of::Fleet, json!({ "runs": 1.5 }), None, "limits.runs").await;
        invalid(Of::Fleet, json!({ "runs": 1 }), Some(0), "window_ms").await;
        invalid(Of::Fleet, json!({ "runs": 1 }), Some(30 * DAY + 1), "window_ms").await;
        assert_eq!(code(try_limit(&world.fleet, Of::Agent("bbo"), json!({ "runs": 1 }), None).await), Code::NotFound);
        assert_eq!(code(try_limit(&world.fleet, Of::Board("atuh"), json!({ "runs": 1 }), None).await), Code::NotFound);
        assert_eq!(try_limit(&world.fleet, Of::Agent("bbo"), json!({ "runs": null }), None).await.unwrap().changed, []);
        let both = spend::Set { agent: Some("bob".into()), board: Some("auth".into()), limits: [(spend::What::Runs, None)].into(), ..Default::default() };
        assert_eq!(code(world.fleet.call(both).await), Code::Invalid);

        let set = try_limit(&world.fleet, Of::Agent("bob"), json!({ "runs": 5, "usd": 2.5 }), Some(3_600_000)).await.unwrap();
        assert_eq!(set.changed, [spend::What::Runs, spend::What::Usd]);
        // A raised limit keeps its window. The same values change nothing.
        let set = try_limit(&world.fleet, Of::Agent("bob"), json!({ "runs": 6, "usd": 2.5 }), None).await.unwrap();
        assert_eq!(set.changed, [spend::What::Runs]);
        assert!(set.limits.iter().all(|limit| limit.window_ms == Millis(3_600_000)), "{set:?}");
        assert_eq!(world.times("spend.set").await, 2);
        let log = world.log().await;
        let last = log.last().unwrap();
        let told = r#"{"limits":{"runs":{"from":{"limit":5,"window_ms":3600000},"to":{"limit":6,"window_ms":3600000}}}}"#;
        assert!(last.starts_with("spend.set spend/agent/bob ") && last.ends_with(told), "{last}");
        let key = key::Add { agent: Some("bob".into()), ..key::Add::new("bob", Access::Agent) };
        let secret = world.fleet.call(key).await.unwrap().secret;
        let bob = world.fleet.as_key(&world.fleet.key(&secret).await.unwrap().expect("it was just added"));
        assert_eq!(code(try_limit(&bob, Of::Agent("bob"), json!({ "runs": null }), None).await), Code::Forbidden);
        assert_eq!(shown(&bob).await.limits.len(), 2);
    }
}
