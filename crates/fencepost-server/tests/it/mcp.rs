//! `/mcp`: the tools over HTTP, with the rights of the caller's key.

use crate::world::{World, request, text};
use axum::{body::Body, http::Request};
use fencepost::{Access, claim, key, run, task};
use fencepost_testing::{eventually, on_both};
use serde_json::{Value, json};

fn sent(body: impl Into<Body>) -> Request<Body> {
    request("POST", "/mcp")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .body(body.into())
        .expect("a request")
}

fn message(method: &str, params: Value) -> Request<Body> {
    sent(json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).to_string())
}

fn call(tool: &str, arguments: Value) -> Request<Body> {
    message("tools/call", json!({"name": tool, "arguments": arguments}))
}

fn with(mut request: Request<Body>, header: &'static str, value: &str) -> Request<Body> {
    request.headers_mut().insert(header, value.parse().expect("a value"));
    request
}

fn by(request: Request<Body>, secret: &str) -> Request<Body> {
    with(request, "authorization", &format!("Bearer {secret}"))
}

/// The structure of the result of a tool.
async fn result(world: &World, request: Request<Body>) -> Value {
    let response = world.send(request).await;
    assert_eq!(response.status(), 200);
    let reply: Value = serde_json::from_str(&text(response).await).expect("JSON");
    assert_eq!(reply["id"], 7, "{reply}");
    reply["result"]["structuredContent"].clone()
}

async fn key(world: &World, name: &str) -> String {
    world.fleet.call(key::Add::new(name, Access::Agent)).await.expect("a key").secret
}

on_both! {
    async fn a_client_names_its_run(world: World) {
        for title in ["one", "two", "three"] {
            world.add(title).await;
        }
        let unnamed = result(&world, call("claim", json!({}))).await;
        assert_eq!((&unnamed["error"]["code"], &unnamed["error"]["field"]), (&json!("invalid"), &json!("run")));
        assert!(unnamed["error"]["hint"].as_str().is_some_and(|hint| hint.contains("Fence-Run")), "{unnamed}");
        let by_header = result(&world, with(call("claim", json!({})), "fence-run", "from-header")).await;
        assert_eq!(by_header["claim"]["run"], "from-header");
        let by_argument = with(call("claim", json!({"run": "mine"})), "fence-run", "from-header");
        assert_eq!(result(&world, by_argument).await["claim"]["run"], "mine");
        let meta = json!({"sessionId": "s/1", "callId": "call_1", "x-codex-turn-metadata": {}});
        let by_session = || message("tools/call", json!({"name": "claim", "arguments": {}, "_meta": meta}));
        let first = result(&world, by_session()).await;
        assert_eq!(first["claim"]["run"], "codex-s-1");
        assert_eq!(result(&world, by_session()).await["claim"]["token"], first["claim"]["token"], "repeated, it is done once");
    }

    async fn each_call_of_a_run_renews_it_for_ten_minutes(world: World) {
        world.add("one").await;
        let claimed = result(&world, call("claim", json!({"run": "r"}))).await;
        let token = claimed["claim"]["token"].as_str().expect("a token").to_owned();
        for _ in 0..3 {
            world.pass(9 * 60);
            result(&world, call("look", json!({"run": "r"}))).await;
        }
        assert_eq!(world.guard(&token).await, claim::Verdict::Ok);
        world.pass(9 * 60);
        result(&world, call("look", json!({"run": "another"}))).await;
        world.pass(2 * 60);
        assert_eq!(world.guard(&token).await, claim::Verdict::LeaseExpired, "another run's calls do not renew it");
        let refused = result(&world, call("finish", json!({"how": "done", "run": "r"}))).await;
        assert_eq!(refused["error"]["code"], "lease_expired", "{refused}");
    }

    async fn a_key_has_its_rights_and_no_more(world: World) {
        world.add("one").await;
        let (alice, bob) = (key(&world, "alice").await, key(&world, "bob").await);
        let reader = world.fleet.call(key::Add::new("eve", Access::Reader)).await.expect("a key").secret;
        // A new server has no cached keys.
        let world = world.with(|_| {});
        let claim = || call("claim", json!({"run": "of-alice"}));
        assert_eq!(world.send(claim()).await.status(), 401, "without a key");
        assert_eq!(world.send(by(claim(), "fk_wrong")).await.status(), 401, "with a wrong one");
        assert_eq!(world.send(message("tools/list", json!({}))).await.status(), 401);
        let refused = result(&world, by(claim(), &reader)).await;
        assert_eq!(refused["error"]["code"], "forbidden", "{refused}");
        let claimed = result(&world, by(claim(), &alice)).await;
        assert_eq!(claimed["claim"]["agent"], "alice", "{claimed}");
        let done = || call("finish", json!({"how": "done", "token": "task/auth-1@1", "run": "of-bob"}));
        assert_eq!(result(&world, by(done(), &bob)).await["error"]["code"], "forbidden", "another agent's claim");
        let theirs = call("claim", json!({"run": "of-alice"}));
        assert_eq!(result(&world, by(theirs, &bob)).await["error"]["code"], "forbidden", "another agent's run");
        world.fleet.call(key::Revoke { force: true, ..key::Revoke::new("alice") }).await.expect("revoked");
        let world = world.with(|_| {});
        assert_eq!(world.send(by(done(), &alice)).await.status(), 401, "a revoked key");
        assert_eq!(world.show("auth-1").await.status.as_str(), "in_progress");
    }

    async fn a_client_that_hangs_up_gets_nothing(world: World) {
        let held = world.add("held").await;
        world.claim(&held, "another").await.expect("claimed");
        let waiting = world.send(call("claim", json!({"run": "r", "wait_seconds": 600})));
        let waits = eventually("it waits", async || world.fleet.stats().waiting > 0);
        tokio::select! {
            response = waiting => panic!("{response:?}"),
            () = waits => {}
        }
        eventually("it waits no more", async || world.fleet.stats().waiting == 0).await;
        // A reply that no connection takes gives its claim back.
        world.add("free").await;
        let response = world.send(call("claim", json!({"run": "r"}))).await;
        assert_eq!(world.fleet.call(claim::List::default()).await.expect("a list").claims.len(), 2);
        drop(response);
        let claims = async || world.fleet.call(claim::List::default()).await.expect("a list").claims.len();
        eventually("the claim is given back", async || claims().await == 1).await;
        assert_eq!(world.show("auth-2").await.attempts, 0);
    }
}

#[tokio::test]
async fn the_same_doors_as_elsewhere() {
    let world = World::sqlite().await;
    let initialize = || {
        let info = json!({"name": "x", "version": "1"});
        message(
            "initialize",
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}),
        )
    };
    let response = world.send(initialize()).await;
    assert!(response.headers().get("mcp-session-id").is_none(), "there are no sessions");
    let reply: Value = serde_json::from_str(&text(response).await).expect("JSON");
    assert_eq!(reply["result"]["serverInfo"]["name"], "fence", "{reply}");
    let newest = |method: &str| {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
        let request = with(message(method, json!({"_meta": meta})), "mcp-protocol-version", "2026-07-28");
        with(request, "mcp-method", method)
    };
    for method in ["server/discover", "tools/list"] {
        let response = world.send(newest(method)).await;
        assert_eq!(response.status(), 200, "{method}");
        assert!(text(response).await.contains("complete"), "{method}");
    }

    // Web pages of other sites, other names, large bodies, other methods.
    assert_eq!(world.send(with(initialize(), "origin", "https://evil.example")).await.status(), 403);
    assert_eq!(world.send(with(initialize(), "host", "evil.example")).await.status(), 421);
    let small = world.with(|settings| settings.body_size = 1000);
    assert_eq!(small.send(sent("x".repeat(2000))).await.status(), 413);
    assert_eq!(world.send(with(initialize(), "content-type", "text/plain")).await.status(), 415);
    let get = request("GET", "/mcp").body(Body::empty()).expect("a request");
    let get = world.send(get).await;
    assert_eq!((get.status().as_u16(), get.headers()["allow"].to_str().expect("text")), (405, "POST"));
    for body in ["{", "[]", "{\"jsonrpc\":\"2.0\"}", "\u{0}"] {
        let status = world.send(sent(body)).await.status().as_u16();
        assert!((400..500).contains(&status), "{body}: {status}");
    }
    assert!(world.fleet.call(run::List::default()).await.expect("a list").runs.is_empty());
    assert!(world.fleet.call(task::List::default()).await.expect("a list").tasks.is_empty());
}
