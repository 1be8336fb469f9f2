//! Settling a trigger's run: once, with a report for each claim.

use fencepost::{Code, agent, run, task};
use fencepost_testing::{World, on_both};
use serde_json::json;

/// Every verb that ends a claim, some that do not, and the report of `run/settle` afterwards. `left`: the holder ended it.
/// `lost`: it was taken away. `settled`: it was still held.
const ENDINGS: &[(&str, &str, &str)] = &[
    ("task", "left", "done {token}"),
    ("task", "left", r#"task/done_many {"tasks": [{"token": "{token}"}]}"#),
    ("task", "left", "fail {token} reason=x"),
    ("task", "left", "fail {token} reason=x retry=true"),
    ("task", "left", "release {token}"),
    ("task", "lost", "unclaim {resource}"),
    ("task", "lost", "cancel {item}"),
    ("task", "lost", "+61s ready"),
    ("task", "lost", "+61s claim {item} run={run}-2 agent={agent}"),
    ("task", "lost", "+61s unclaim {resource}"),
    ("task", "lost", "+61s cancel {item}"),
    ("task", "over", "end {run}"),
    ("task", "over", "+601s ready"),
    ("task", "settled", "agent/leave {agent}"),
    ("task", "settled", "agent/recall {agent} force=true"),
    ("task", "settled", "lock/claim name={run} run={run}; unclaim lock/{run}"),
    ("task", "settled", r#"task/import {"tasks": [{"id": "other-{n}", "title": "t"}]}"#),
    // Another run has held it since.
    (
        "task",
        "left",
        "fail {token} reason=x; retry {item}; claim {item} run={run}-2 agent={agent}; done {resource}@2",
    ),
    (
        "task",
        "left",
        "fail {token} reason=x retry=true delay_ms=0; claim {item} run={run}-2 agent={agent}; done {resource}@2",
    ),
    ("task", "left", "release {token}; claim {item} run={run}-2 agent={agent}; done {resource}@2"),
    ("task", "lost", "unclaim {resource}; claim {item} run={run}-2 agent={agent}; done {resource}@2"),
    ("task", "lost", "+61s claim {item} run={run}-2 agent={agent}; fail {resource}@2 reason=x"),
    ("offer", "left", "accept {item} agent={agent} token={token}"),
    ("offer", "left", "reject {item} agent={agent} token={token} reason=x"),
    ("offer", "left", "release {token}"),
    ("offer", "lost", "unclaim {resource}"),
    ("offer", "lost", "cancel {item}"),
    ("offer", "lost", "+61s claim {item} run={run}-2 agent={agent}"),
    (
        "offer",
        "left",
        "accept {item} agent={agent} token={token}; claim {item} run={run}-2 agent={agent}; done {resource}@2",
    ),
    (
        "offer",
        "left",
        "reject {item} agent={agent} token={token} reason=x; claim {item} run={run}-2; done {resource}@2",
    ),
    ("offer", "back", "agent/leave {agent}"),
    ("message", "left", "mail/done {token}"),
    ("message", "left", r#"mail/done_many {"messages": [{"token": "{token}"}]}"#),
    ("message", "left", "inbox/read {token}"),
    ("message", "left", "inbox/respond {token} text=x"),
    ("message", "left", "inbox/delegate {token}"),
    ("message", "left", "mail/fail {token} reason=x"),
    ("message", "left", "mail/fail {token} reason=x retry=true"),
    ("message", "left", "mail/fail {token} reason=x lost=true"),
    ("message", "left", "mail/release {token}"),
    ("message", "left", "release {token}"),
    ("message", "lost", "mail/reset run={run}"),
    ("message", "lost", "mail/reset mailbox=inbox/{agent}"),
    ("message", "lost", "unclaim {resource}"),
    ("message", "lost", "+61s mail/claim inbox/{agent} run={run}-2"),
    ("message", "lost", "+61s inbox/read {item}"),
    ("message", "lost", "+61s mail/discard {item}"),
    ("message", "lost", "+61s unclaim {resource}"),
    ("message", "lost", "mail/configure inbox/{agent} replay=hold; +61s mail/take other"),
    ("message", "lost", "mail/configure inbox/{agent} replay=discard; +61s mail/take other"),
    ("message", "over", "end {run}"),
    ("message", "over", "+601s mail/take other"),
    ("message", "settled", "mail/pause inbox/{agent} reason=x"),
    ("message", "settled", "agent/leave {agent}"),
    // Another run has held it since, or it was removed.
    ("message", "left", "mail/fail {token} reason=x; mail/redrive {item}"),
    (
        "message",
        "left",
        "mail/fail {token} reason=x; mail/redrive {item}; mail/claim inbox/{agent} run={run}-2; mail/done {resource}@2",
    ),
    (
        "message",
        "left",
        "mail/fail {token} reason=x lost=true delay_ms=0; mail/claim inbox/{agent} run={run}-2; mail/done {resource}@2",
    ),
    (
        "message",
        "left",
        "mail/fail {token} reason=x retry=true delay_ms=0; mail/claim inbox/{agent} run={run}-2; mail/done {resource}@2",
    ),
    ("message", "left", "mail/release {token}; mail/claim inbox/{agent} run={run}-2; mail/done {resource}@2"),
    ("message", "lost", "mail/reset run={run}; mail/claim inbox/{agent} run={run}-2; mail/done {resource}@2"),
    (
        "message",
        "lost",
        "unclaim {resource}; mail/claim inbox/{agent} run={run}-2; mail/fail {resource}@2 reason=x",
    ),
    (
        "message",
        "left",
        "mail/configure inbox/{agent} retain_count=1; mail/done {token}; +1s inbox/send {agent} text=x; mail/take inbox/{agent}; admin/prune",
    ),
    (
        "message",
        "lost",
        "mail/configure inbox/{agent} retain_count=1; +61s inbox/read {item}; +1s inbox/send {agent} text=x; mail/take inbox/{agent}; admin/prune",
    ),
    ("mention", "settled", "channel/read talk agent={agent} token={token}"),
    ("mention", "settled", "channel/read talk agent={agent}"),
    ("mention", "left", "release {token}"),
    ("mention", "lost", "unclaim {resource}"),
    ("mention", "lost", "+61s agent/poll {agent} run={run}-2"),
    ("mention", "over", "end {run}"),
    ("mention", "over", "+601s mail/take other"),
    ("mention", "settled", "channel/read talk agent={agent} peek=true"),
    ("mention", "settled", "channel/leave talk agent={agent}"),
    ("mention", "left", "release {token}; agent/poll {agent} run={run}-2; run/settle {run}-2"),
    ("mention", "lost", "unclaim {resource}; agent/poll {agent} run={run}-2; run/settle {run}-2"),
];

/// Claims an item of this kind for a new run, and returns both.
async fn given(world: &World, noun: &str, agent: &str, run: &str) -> String {
    let setup = match noun {
        "task" => format!("add mine to={agent} ->"),
        "offer" => format!("add maybe offer={agent} ->"),
        "message" => format!("inbox/send {agent} text=x ->"),
        "mention" => format!("channel/post talk body=x mentions={agent} ->"),
        _ => panic!("what is a {noun}?"),
    };
    world.story(&format!("agent/join {agent} ->\n{setup}")).await;
    let kind = match noun {
        "task" => "task_assigned",
        "offer" => "task_offered",
        "message" => "inbox_message",
        _ => "unread_mentions",
    };
    let poll = json!({
        "agent": agent, "run": run, "accept": [kind], "ttl_ms": 600_000, "max_ms": 60_000,
    });
    let trigger = world.call("agent/poll", &poll).await.expect("a trigger");
    trigger["trigger"]["claims"][0]["token"].as_str().expect("a token").to_owned()
}

on_both! {
    /// Repeating it returns the first reply; other content is refused. A later run of the same name is left alone.
    async fn a_run_is_settled_once(world: World) {
        world.story("
            agent/join bob                                 -> agent.name=bob
            add mine to=bob                                -> auth-1
            add next                                       -> auth-2
            agent/poll bob run=b1                          -> claims=task/auth-1@1
            run/settle b1                                  -> settled=task/auth-1@1
            run/settle b1 outcome=failed reason=x          -> refused already_finished
            run/settle b1                                  -> settled=task/auth-1@1 run.reason=done
            claim auth-2 run=b1                            -> task/auth-2@1
            run/settle b1                                  -> refused not_ready
            guard task/auth-2@1                            -> reason=ok
        ").await;
        assert_eq!(world.times("task.completed").await, 1);
    }

    /// A settlement names the delay until the work can be taken again. Offers and mentions have none.
    async fn a_settlement_can_delay_the_next_attempt(world: World) {
        world.story("
            agent/join bob                                               -> agent.name=bob
            add one                                                      -> auth-1
            agent/poll bob run=b1                                        -> claims=task/auth-1@1
            run/settle b1 outcome=failed reason=no_verdict delay_ms=2000 -> settled=task/auth-1@1
            +1s agent/poll bob run=b2                                    -> trigger=none
            claim auth-1 run=hand                                        -> refused not_ready
        ").await;
        let why = world.fleet.call(task::Why { task: "auth-1".into() }).await.expect("why").reasons;
        assert!(why[0].message.starts_with("failed (no_verdict), and is tried again after "), "{why:?}");
        world.story("
            +1s agent/poll bob run=b2                                    -> claims=task/auth-1@2
            run/settle b2 outcome=released delay_ms=60000                -> back=task/auth-1@2
            run/settle b2 outcome=released delay_ms=60000                -> back=task/auth-1@2
            +59s agent/poll bob run=b3                                   -> trigger=none
        ").await;
        let why = world.fleet.call(task::Why { task: "auth-1".into() }).await.expect("why").reasons;
        assert!(why[0].message.starts_with("given back, and can be claimed after "), "{why:?}");
        assert_eq!(world.show("auth-1").await.attempts, 1);
        world.story("
            +1s agent/poll bob run=b3                                    -> claims=task/auth-1@3
            run/settle b3 outcome=failed delay_ms=0                      -> settled=task/auth-1@3
            agent/poll bob run=b4                                        -> claims=task/auth-1@4
            run/settle b4 outcome=done delay_ms=60000                    -> settled=task/auth-1@4
            inbox/send bob text=x                                        -> item.id=1
            agent/poll bob run=m1                                        -> claims=message/1@1
            run/settle m1 outcome=released delay_ms=60000                -> back=message/1@1
            +59s agent/poll bob run=m2                                   -> trigger=none
            +1s agent/poll bob run=m2                                    -> claims=message/1@2
            run/settle m2 outcome=failed delay_ms=1000                   -> settled=message/1@2
            agent/poll bob run=m3                                        -> trigger=none
            +1s agent/poll bob run=m3                                    -> claims=message/1@3
            run/settle m3                                                -> settled=message/1@3
            add maybe offer=bob                                          -> auth-2
            agent/poll bob run=o1                                        -> claims=task/auth-2@1
            run/settle o1 outcome=released delay_ms=60000                -> back=task/auth-2@1
            agent/poll bob run=o2                                        -> claims=task/auth-2@2
            run/settle o2 delay_ms=-1                                    -> refused invalid
        ").await;
    }

    /// The output of an attempt that was not completed is kept with its run, and only shown with that run.
    async fn the_output_of_a_failed_attempt_is_kept(world: World) {
        world.story("
            agent/join bob                                 -> agent.name=bob
            add one                                        -> auth-1
            agent/poll bob run=b1                          -> claims=task/auth-1@1
            run/settle b1 outcome=failed output=first exit=SIGKILL delay_ms=0 -> settled=task/auth-1@1
            run/settle b1 outcome=failed output=other -> refused already_finished
            agent/poll bob run=b2                          -> claims=task/auth-1@2
            run/settle b2 outcome=released output=second   -> back=task/auth-1@2
            agent/poll bob run=b3                          -> claims=task/auth-1@3
            run/settle b3 output=third                     -> settled=task/auth-1@3
        ").await;
        let output = async |run: &str| {
            let list = run::List { run: Some(run.into()), all: true, limit: None };
            let runs = world.fleet.call(list).await.expect("the runs").runs;
            (runs[0].exit.clone(), runs[0].output.clone())
        };
        assert_eq!(output("b1").await, (Some("SIGKILL".into()), Some("first".into())));
        assert_eq!(output("b2").await, (None, Some("second".into())));
        assert_eq!(output("b3").await, (None, None));
        assert_eq!(world.show("auth-1").await.output.as_deref(), Some("third"));
        let all = world.fleet.call(run::List { all: true, ..Default::default() }).await.expect("the runs").runs;
        assert!(all.len() == 3 && all.iter().all(|run| run.output.is_none()), "{all:?}");
    }

    async fn a_run_reports_its_trigger_and_outcome(world: World) {
        world.story("
            agent/join bob                                 -> agent.name=bob
            add mine to=bob                                -> auth-1
        ").await;
        let poll = agent::Poll {
            agent: "bob".into(), run: "b1".into(), host: Some("here".into()), ..Default::default()
        };
        world.fleet.call(poll).await.expect("a trigger");
        let runs = world.fleet.call(run::List::default()).await.expect("the runs").runs;
        let run = &runs[0];
        assert_eq!((run.trigger.as_deref(), run.host.as_deref()), (Some("task_assigned"), Some("here")));
        assert_eq!((run.holds, run.claims.as_slice()), (1, ["task/auth-1@1".to_owned()].as_slice()));
        let agents = world.fleet.call(agent::List::default()).await.expect("the agents").agents;
        assert_eq!(agents[0].runs[0].claims, ["task/auth-1@1"]);
        let cost = serde_json::json!({ "usd": 0.12 });
        let settle = run::Settle {
            run: "b1".into(), exit: Some("0".into()), cost: Some(cost.clone()), ..Default::default()
        };
        let told = world.fleet.call(settle.clone()).await.expect("settled").run;
        let again = world.fleet.call(settle).await.expect("the same").run;
        assert_eq!(told, again);
        assert_eq!((told.exit.as_deref(), told.cost, told.holds), (Some("0"), Some(cost), 0));
        let gone = run::Settle { run: "nobody".into(), ..Default::default() };
        assert_eq!(world.fleet.call(gone).await.expect_err("no such run").code(), Code::NotFound);
    }

    async fn settle_reports_how_each_claim_ended(world: World) {
        world.story("
            channel/create talk ->
            mail/push other     ->
            mail/take other     ->
            mail/configure other max_attempts=1 ->
        ").await;
        for (n, (noun, says, verbs)) in ENDINGS.iter().enumerate() {
            let (agent, run) = (format!("a{n}"), format!("r{n}"));
            let token = given(&world, noun, &agent, &run).await;
            let (resource, _) = token.split_once('@').expect("a token");
            let item = resource.split('/').nth(1).expect("an item");
            let verbs = [
                ("{token}", token.as_str()), ("{resource}", resource), ("{item}", item), ("{agent}", &agent),
                ("{run}", &run), ("{n}", &(n + 1).to_string()),
            ].into_iter().fold((*verbs).to_owned(), |verbs, (name, value)| verbs.replace(name, value));
            for verb in verbs.split("; ") {
                match verb.split_once(" {") {
                    Some((op, request)) => {
                        let request = serde_json::from_str(&format!("{{{request}")).expect("a request");
                        world.call(op, &request).await.unwrap_or_else(|e| panic!("{verb}: {e}"));
                    }
                    // An empty claim is fine: it ran the expiry.
                    None if verb.contains("mail/take other") => {
                        world.story(&format!("{verb} -> refused none_ready")).await;
                    }
                    None => world.story(&format!("{verb} ->")).await,
                }
            }
            let settle = run::Settle { run: run.clone(), ..Default::default() };
            let said = async || match world.fleet.call(settle.clone()).await {
                Ok(settled) => {
                    let said = [
                        ("settled", settled.settled), ("back", settled.back), ("left", settled.left),
                        ("lost", settled.lost),
                    ];
                    let said = said.into_iter().filter(|(_, tokens)| tokens.contains(&token));
                    said.map(|(list, _)| list).collect::<Vec<_>>().join(" and ")
                }
                Err(e) if e.code() == Code::LeaseExpired => "over".into(),
                Err(e) => e.to_string(),
            };
            assert_eq!(said().await, *says, "{noun}: {verbs}");
            assert_eq!(said().await, *says, "asked again: {noun}: {verbs}");
        }
    }
}
