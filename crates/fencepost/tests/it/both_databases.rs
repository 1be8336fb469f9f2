//! The same random calls on both databases: every reply is the same, word for word, the integrity check passes, and the
//! logs agree. A difference between the two is a bug.

use fencepost_testing::World;
use serde_json::{Map, Value, json};

const STEPS: usize = 80;

/// A random request, valid or not, about a few items, so that requests often concern the same one.
fn step(rng: &mut fastrand::Rng, tokens: &[String]) -> (&'static str, Value) {
    let verbs = [
        (
            "task/add",
            12,
            &[
                "title",
                "board?",
                "to?",
                "offer?",
                "after?",
                "tags?",
                "priority?",
                "max_attempts?",
                "key?",
                "request?",
            ][..],
        ),
        ("task/plan", 3, &["tasks", "board?", "request?"]),
        ("task/claim", 16, &["run", "task?", "agent?", "tag?", "ttl_ms", "max_ms?", "resume?", "request?"]),
        ("task/claim_many", 4, &["run", "count", "board?", "tag?", "agent?", "ttl_ms", "request?"]),
        ("task/done", 8, &["token", "output?"]),
        ("task/done_many", 2, &["completions"]),
        ("task/fail", 6, &["token", "reason", "retry?", "delay_ms?"]),
        ("task/progress", 2, &["token", "text", "request?"]),
        ("task/checkpoint", 2, &["token", "ordinal", "phase"]),
        ("claim/release", 5, &["token", "note?"]),
        ("claim/renew", 3, &["token"]),
        ("claim/guard", 2, &["token"]),
        ("claim/unclaim", 1, &["resource"]),
        ("task/offer", 4, &["task", "agent as to", "request?"]),
        ("task/assign", 2, &["task", "agent as to"]),
        ("task/accept", 4, &["task", "agent", "token?"]),
        ("task/reject", 3, &["task", "agent", "reason", "token?"]),
        ("task/park", 2, &["task", "reason"]),
        ("task/unpark", 3, &["task"]),
        ("task/cancel", 2, &["task", "request?"]),
        ("task/retry", 4, &["task"]),
        ("task/reopen", 3, &["task", "reason?", "to?", "request?"]),
        ("task/edit", 4, &["task", "title?", "priority?", "tags?", "max_attempts?"]),
        ("task/note", 1, &["task", "text"]),
        ("task/depend", 5, &["task", "task as after"]),
        ("task/undepend", 3, &["task", "task as after"]),
        ("lock/claim", 3, &["name", "run", "ttl_ms"]),
        ("run/end", 2, &["run"]),
        ("run/renew", 1, &["run"]),
        ("task/ready", 3, &["board?", "agent?"]),
        ("task/why", 3, &["task"]),
        ("task/wait", 3, &["names", "any?"]),
        ("task/wait", 2, &["board", "any?"]),
        ("task/list", 2, &["board?", "tag?", "task as after?"]),
        ("claim/list", 1, &[]),
        ("board/list", 1, &[]),
        ("board/show", 1, &["board"]),
        ("run/list", 1, &["all?"]),
    ];
    let mut at = rng.usize(..verbs.iter().map(|(_, weight, _)| *weight).sum::<usize>());
    let chosen = verbs.iter().find(|(_, weight, _)| {
        let found = at < *weight;
        at = at.saturating_sub(*weight);
        found
    });
    let (name, _, fields) = chosen.expect("the weights add up");
    let mut request = Map::new();
    for field in *fields {
        let optional = field.ends_with('?');
        if !optional || rng.u8(..4) == 0 {
            let field = field.trim_end_matches('?');
            let (what, called) = field.split_once(" as ").unwrap_or((field, field));
            let called = if matches!(called, "completions" | "names") { "tasks" } else { called };
            request.insert(called.into(), value(rng, tokens, what));
        }
    }
    if *name == "task/add"
        && let Some(after) = request.remove("after")
    {
        request.insert("after".into(), json!([after]));
    }
    (name, Value::Object(request))
}

fn value(rng: &mut fastrand::Rng, tokens: &[String], what: &str) -> Value {
    let pick = |rng: &mut fastrand::Rng, of: &[&str]| of[rng.usize(..of.len())].to_owned();
    let task =
        |rng: &mut fastrand::Rng| format!("{}-{}", ["auth", "auth", "main"][rng.usize(..3)], rng.u8(1..=7));
    // Mostly a recent token, so that many calls are accepted.
    let token = |rng: &mut fastrand::Rng| match rng.u8(..12) {
        0 => format!("lock/deploy@{}", rng.u8(1..=4)),
        1 | 2 => format!("task/{}@{}", task(rng), rng.u8(1..=5)),
        _ if tokens.is_empty() => "task/auth-1@1".into(),
        _ => tokens[tokens.len().saturating_sub(rng.usize(1..=4))].clone(),
    };
    match what {
        "board" => "auth".into(),
        "task" | "after" => task(rng).into(),
        "token" => token(rng).into(),
        "resource" => format!("task/{}", task(rng)).into(),
        "run" => pick(rng, &["r1", "r2", "r3", "r4"]).into(),
        "agent" | "to" | "offer" => pick(rng, &["bob", "bob", "eve"]).into(),
        "tag" => pick(rng, &["x", "y"]).into(),
        "tags" => json!([["x"].as_slice(), &["y"], &["x", "y"], &[]][rng.usize(..4)]),
        "priority" => rng.i64(0..=101).into(),
        "max_attempts" => rng.i64(1..=3).into(),
        "count" => rng.i64(1..=4).into(),
        "ordinal" => rng.i64(1..=3).into(),
        "ttl_ms" => (rng.i64(1..=4) * 10_000).into(),
        "max_ms" | "delay_ms" => (rng.i64(0..=2) * 10_000).into(),
        "names" => json!([task(rng), task(rng)]),
        "resume" | "retry" | "all" | "any" => true.into(),
        "request" => pick(rng, &["q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8"]).into(),
        "key" => pick(rng, &["k1", "k2"]).into(),
        "name" => "deploy".into(),
        "completions" => json!([{ "token": token(rng) }, { "token": token(rng), "output": "z" }]),
        "tasks" => {
            let on = if rng.bool() { "a".to_owned() } else { task(rng) };
            json!([{ "name": "a", "title": "a", "key": value(rng, tokens, "key") }, { "title": "b", "after": [on, task(rng)], "tags": ["x"] }])
        }
        _ => pick(rng, &["u", "v"]).into(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_databases_reply_the_same() {
    walk_both(0..12).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make soak"]
async fn soak_both_databases_reply_the_same() {
    walk_both(12..400).await;
}

async fn walk_both(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let (lite, postgres) = (World::sqlite().await, World::postgres().await);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut tokens = Vec::new();
        let mut walk = Vec::new();
        for n in 0..STEPS {
            let first = ("task/add", json!({ "title": "t", "board": (n % 2 == 0).then_some("auth") }));
            let (name, request) = if n < 8 { first } else { step(&mut rng, &tokens) };
            let seconds = if rng.u8(..3) == 0 { rng.u64(1..15) } else { 0 };
            lite.pass(seconds);
            postgres.pass(seconds);
            walk.push(format!("+{seconds}s {name} {request}"));
            let answers = (lite.call(name, &request).await, postgres.call(name, &request).await);
            let [one, other] =
                [answers.0, answers.1].map(|answer| answer.unwrap_or_else(|error| json!(error)));
            assert_eq!(one, other, "seed {seed}:\n{}", walk.join("\n"));
            tokens.extend(one.pointer("/claim/token").and_then(Value::as_str).map(str::to_owned));
            assert_ne!(one["code"], "internal", "seed {seed}: {one}\n{}", walk.join("\n"));
            let report = lite.fleet.call(fencepost::admin::Check {}).await.unwrap();
            assert!(report.ok, "seed {seed}: {:#?}\n{}", report.violations, walk.join("\n"));
        }
        let mut logs = [lite.log().await, postgres.log().await];
        // Items that are due at the same moment come back in any order.
        logs.iter_mut().for_each(|log| log.sort());
        assert_eq!(logs[0], logs[1], "seed {seed}:\n{}", walk.join("\n"));
        postgres.assert_sound().await;
    }
}
