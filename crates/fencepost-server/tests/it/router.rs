//! Requests and replies: paths, methods, bodies, and errors.

use crate::world::{World, get, post, request};
use axum::body::Body;
use bytes::Bytes;
use fencepost::op;
use fencepost_testing::{PATIENCE, on_both};
use futures_util::StreamExt;
use serde_json::json;
use std::{convert::Infallible, time::Duration};

on_both! {
    async fn a_task_can_be_worked_on_over_http_alone(world: World) {
        let added = world.ok("task/add", json!({ "board": "auth", "title": "write it" })).await;
        assert_eq!(added["task"]["id"], "auth-1");
        let claimed = world.ok("task/claim", json!({ "run": "r-1" })).await;
        assert_eq!(claimed["claim"]["token"], "task/auth-1@1");
        let guarded = world.get("/v1/claim/guard?token=task/auth-1@1").await;
        assert_eq!((guarded.0, &guarded.1["ok"]), (200, &json!(true)));
        let done = world.ok("task/done", json!({ "token": "task/auth-1@1" })).await;
        assert_eq!(done["task"]["status"], "completed");
        let (status, refused) = world.post("task/claim", json!({ "run": "r-2", "task": "auth-1" })).await;
        assert_eq!((status, &refused["error"]["code"]), (409, &json!("already_finished")));
    }

    /// Byte for byte.
    async fn replies_and_errors_are_those_of_the_engine(world: World) {
        world.ok("task/add", json!({ "board": "auth", "title": "one" })).await;
        world.ok("task/claim", json!({ "run": "holder" })).await;
        for (name, request) in [
            ("task/show", json!({ "task": "auth-1" })),
            ("task/claim", json!({ "run": "r", "task": "auth-1" })),
            ("task/claim", json!({ "run": "r" })),
            ("task/show", json!({ "task": "auth-9" })),
            ("task/show", json!({ "task": 7 })),
            ("task/list", json!({ "limit": 0 })),
            ("task/done", json!({ "token": "task/auth-1@9" })),
        ] {
            let direct = op::find(name).unwrap().call(&world.fleet, &request.to_string()).await;
            let (status, wanted) = match direct {
                Ok(reply) => (200, reply),
                Err(error) => (error.code().http_status(), error.to_json()),
            };
            assert_eq!(world.post(name, request).await, (status, wanted), "{name}");
        }
    }

    async fn an_op_answers_under_its_former_name(world: World) {
        world.ok("lock/claim", json!({ "name": "deploy", "run": "r-1" })).await;
        for (former, name) in [("run/doubt", "run/suspect"), ("admin/settle", "admin/expire")] {
            let request = if name == "run/suspect" { json!({ "run": "r-1" }) } else { json!({}) };
            let (answer, former) = (world.ok(name, request.clone()).await, world.ok(former, request).await);
            assert_eq!(answer, former, "{name}");
        }
    }

    async fn ops_that_only_read_also_accept_get(world: World) {
        for title in ["one", "two", "three"] {
            world.ok("task/add", json!({ "board": "auth", "title": title })).await;
        }
        let ids = |(status, page): (u16, serde_json::Value)| {
            assert_eq!(status, 200, "{page}");
            let tasks = page["tasks"].as_array().unwrap().clone();
            tasks.iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(ids(world.get("/v1/task/list?board=auth&limit=2").await), ["auth-1", "auth-2"]);
        assert_eq!(ids(world.get("/v1/task/list").await).len(), 3);
        let waited = world.get("/v1/task/wait?tasks=auth-1&tasks=auth-2&any=true").await;
        assert_eq!((waited.0, waited.1["tasks"].as_array().map(Vec::len)), (200, Some(2)), "{}", waited.1);
    }

    async fn a_header_names_the_acting_agent(world: World) {
        let mut request = post("task/add", r#"{"board":"auth","title":"one"}"#);
        request.headers_mut().insert("fence-agent", "lead".parse().unwrap());
        assert_eq!(world.send(request).await.status(), 200);
        let shown = world.ok("task/show", json!({ "task": "auth-1" })).await;
        assert_eq!(shown["task"]["creator"], "lead", "{shown}");
    }
}

#[tokio::test]
async fn every_op_has_a_path() {
    let world = World::sqlite().await;
    for entry in op::registry() {
        let path = format!("/v1/{}", entry.name);
        // An empty list is no valid request of any op.
        let (status, answer) = world.post(entry.name, json!([])).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("invalid")), "{path}");
        let status = world.send(get(&path)).await.status().as_u16();
        assert_eq!(status == 405, !entry.reads, "GET {path} is {status}");
    }
}

#[tokio::test]
async fn a_wrong_request_gets_a_clear_error() {
    let world = World::sqlite().await.with(|settings| settings.body_size = 64);
    let raw = |kind: Option<&str>, body: &'static str| {
        let request = request("POST", "/v1/task/show");
        let request = match kind {
            Some(kind) => request.header("content-type", kind),
            None => request,
        };
        request.body(Body::from(body)).unwrap()
    };
    let long = format!(r#"{{"task":"{}"}}"#, "x".repeat(64));
    let streamed = Body::from_stream(futures_util::stream::iter(std::iter::repeat_n(
        Ok::<_, Infallible>(Bytes::from_static(b"          ")),
        10,
    )));
    let mut answers = Vec::new();
    for (what, request) in [
        ("not JSON", post("task/show", "{\"task\": ")),
        ("a field of the wrong type", post("task/show", "{\"task\": 7}")),
        ("a field that is missing", post("task/show", "{}")),
        ("an unknown field", post("task/show", "{\"task\": \"a-1\", \"x\": 1}")),
        ("not an object", post("task/show", "[]")),
        ("two documents", post("task/show", "{\"task\":\"a-1\"}{}")),
        ("another content type", raw(Some("text/plain"), "{}")),
        ("no content type", raw(None, "{}")),
        ("a charset", raw(Some("Application/JSON; charset=utf-8"), "{\"task\":\"a-1\"}")),
        ("nothing at all", raw(None, "")),
        ("too large by its announced length", post("task/show", &long)),
        (
            "too large as it arrived",
            request("POST", "/v1/task/show")
                .header("content-type", "application/json")
                .body(streamed)
                .unwrap(),
        ),
        ("an unknown verb", post("lock/dance", "{}")),
        ("an unknown noun", get("/v1/dance")),
        ("an unknown path", get("/dance")),
        ("GET of an op that writes", get("/v1/task/add")),
        ("DELETE of an op that reads", request("DELETE", "/v1/task/show").body(Body::empty()).unwrap()),
        ("POST of a path that is no op", request("POST", "/healthz").body(Body::empty()).unwrap()),
        ("a number that is not one", get("/v1/task/list?limit=five")),
        ("a field twice", get("/v1/task/list?limit=1&limit=2")),
        ("an unknown field, by GET", get("/v1/task/list?colour=red")),
    ] {
        answers.push(format!("# {what}\n{}", world.exchange(request).await));
    }
    insta::assert_snapshot!("refusals", answers.join("\n\n"));
}

#[tokio::test]
async fn a_body_that_is_not_utf8_is_refused() {
    let world = World::sqlite().await;
    let request = request("POST", "/v1/task/show").header("content-type", "application/json");
    let answer = world.exchange(request.body(Body::from(&b"{\"task\":\"\xff\"}"[..])).unwrap()).await;
    insta::assert_snapshot!(answer);
}

#[tokio::test]
async fn a_slow_body_is_refused() {
    let world = World::sqlite().await.with(|settings| settings.body_time = Duration::from_millis(20));
    let never = Body::from_stream(futures_util::stream::pending::<Result<Bytes, Infallible>>());
    let request = request("POST", "/v1/task/show").header("content-type", "application/json");
    insta::assert_snapshot!(world.exchange(request.body(never).unwrap()).await);
}

/// Large bodies share a memory budget. Past it, large requests are told to retry, and small ones are still served.
#[tokio::test]
async fn the_memory_for_large_bodies_is_limited() {
    let world = World::sqlite().await.with(|settings| {
        (settings.body_size, settings.body_memory) = (100 * 1024, 100 * 1024);
        (settings.body_time, settings.hook_size) = (Duration::from_secs(3600), 1024);
    });
    let piece = Bytes::from(vec![b' '; 90 * 1024]);
    let request = |body: Body| {
        request("POST", "/v1/task/list").header("content-type", "application/json").body(body).unwrap()
    };
    let unfinished_request = {
        let (world, piece) = (world.clone(), piece.clone());
        let unfinished =
            futures_util::stream::iter([Ok::<_, Infallible>(piece)]).chain(futures_util::stream::pending());
        tokio::spawn(async move { world.send(request(Body::from_stream(unfinished))).await })
    };
    let buffered = async |n: usize| {
        let reached = async {
            while (world.app.usage().body_bytes > 0) != (n > 0) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("it is in memory");
    };
    buffered(1).await;
    let large = || request(Body::from([&piece[..], b"{}"].concat()));
    insta::assert_snapshot!(world.exchange(large()).await);
    assert_eq!(world.post("task/list", json!({})).await.0, 200, "small requests are served");
    unfinished_request.abort();
    buffered(0).await;
    assert_eq!(world.send(large()).await.status(), 200, "it fits now");
    assert_eq!(world.app.usage().body_bytes, 0);
}

/// Replies that clients have not read share a memory budget. Claims whose reply does not fit are given back.
#[tokio::test]
async fn the_memory_for_large_replies_is_limited() {
    let world = World::sqlite().await.with(|settings| settings.reply_memory = 8 * 1024);
    let plan: Vec<_> =
        (0..300).map(|n| json!({ "title": n.to_string(), "body": "x".repeat(1000) })).collect();
    world.ok("task/plan", json!({ "board": "auth", "tasks": plan })).await;
    let large = || post("event/list", r#"{"limit":1000}"#);
    let unread = world.send(large()).await;
    assert_eq!(unread.status(), 200, "one reply may be larger than the whole budget");
    insta::assert_snapshot!(world.exchange(large()).await);
    assert_eq!(world.post("task/show", json!({ "task": "auth-1" })).await.0, 200, "small replies are sent");
    let claim = json!({ "run": "r", "board": "auth", "count": 50 });
    let (status, refused) = world.post("task/claim_many", claim.clone()).await;
    assert_eq!((status, &refused["error"]["code"]), (503, &json!("unavailable")), "{refused}");
    let given_back = async {
        while !world.ok("claim/list", json!({})).await["claims"].as_array().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, given_back).await.expect("nothing stays claimed");
    // A write was carried out: its client must retry to know.
    let plan = json!({ "board": "more", "tasks": plan });
    let (status, unknown) = world.post("task/plan", plan).await;
    assert_eq!((status, &unknown["error"]["code"]), (503, &json!("outcome_unknown")), "{unknown}");
    drop(unread);
    assert_eq!(world.send(large()).await.status(), 200);
    assert_eq!(world.post("task/claim_many", claim).await.0, 200);
}

#[tokio::test]
async fn health_is_the_process_and_readiness_the_database() {
    let world = World::sqlite().await;
    assert_eq!(world.get("/healthz").await, (200, json!({ "ok": true })));
    let ready = json!({ "ok": true, "database": "SQLite", "now": "2026-01-01T12:00:00.000Z" });
    assert_eq!(readiness(&world).await, (200, ready));
}

/// The answer of the readiness check, retried while the database takes longer than 5 s.
pub async fn readiness(world: &World) -> (u16, serde_json::Value) {
    let answered = async {
        loop {
            let answer = world.get("/readyz").await;
            if answer.0 != 503 {
                return answer;
            }
        }
    };
    tokio::time::timeout(PATIENCE, answered).await.expect("it answers")
}
