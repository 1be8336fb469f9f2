//! Keys: who may call, and which ops.

use crate::{
    router::readiness,
    world::{World, get, post, request, text},
};
use axum::{body::Body, http::Request};
use bytes::Bytes;
use fencepost::{Access, key, op};
use fencepost_server::{App, Server, Settings};
use fencepost_testing::{eventually, on_both};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

async fn key(world: &World, name: &str, role: Access) -> String {
    world.fleet.call(key::Add::new(name, role)).await.expect("a key").secret
}

async fn revoke(world: &World, name: &str) {
    world.fleet.call(key::Revoke { force: true, ..key::Revoke::new(name) }).await.expect("revoked");
}

fn with(mut request: Request<Body>, secret: &str) -> Request<Body> {
    request.headers_mut().insert("authorization", format!("Bearer {secret}").parse().unwrap());
    request
}

on_both! {
    async fn every_role_may_call_what_its_access_says(world: World) {
        let roles = [Access::Reader, Access::Agent, Access::Admin];
        let mut secrets = Vec::new();
        for role in roles {
            secrets.push((role, key(&world, &format!("{role:?}").to_lowercase(), role).await));
        }
        for entry in op::registry() {
            // An empty list is no valid request of any op: an accepted caller gets a 400, and nothing is done.
            assert_eq!(world.post(entry.name, json!([])).await.0, 401, "{} without a key", entry.name);
            for (role, secret) in &secrets {
                let response = world.send(with(post(entry.name, "[]"), secret)).await;
                let wanted = if *role < entry.access { 403 } else { 400 };
                assert_eq!(response.status(), wanted, "{} by {role:?}", entry.name);
                if entry.reads {
                    let read = with(get(&format!("/v1/{}?colour=red", entry.name)), secret);
                    assert_eq!(world.send(read).await.status(), wanted, "GET {} by {role:?}", entry.name);
                }
            }
        }
    }

    /// The log keeps who let a session go on, so an agent must not be able to write that.
    async fn only_an_admin_s_key_records_a_lift(world: World) {
        let admin = key(&world, "lead", Access::Admin).await;
        let agent = key(&world, "ann", Access::Agent).await;
        let lift = || post("run/lift", r#"{"run":"claude-1","reason":"kim said so"}"#);
        let lifted = async || world.log().await.iter().filter(|line| line.starts_with("run.lifted")).count();
        assert_eq!(world.send(with(lift(), &agent)).await.status(), 403);
        assert_eq!(lifted().await, 0);
        assert_eq!(world.send(with(lift(), &admin)).await.status(), 200);
        assert_eq!(lifted().await, 1);
    }

    /// Others at the address of a caller guess, and the server has not seen the caller's key yet.
    async fn guessing_locks_out_no_key(world: World) {
        let old = key(&world, "old", Access::Reader).await;
        let world = world.with(|settings| settings.guess_rate = 1);
        let status = async |secret: &str| world.send(with(get("/v1/task/list"), secret)).await.status().as_u16();
        let guess = async |n: u32| status(&format!("fence_{n}")).await;
        let mut guesses = 0;
        while guess(guesses).await != 429 {
            guesses += 1;
            assert!(guesses < 1000, "guessing is not slowed down");
        }
        assert_eq!(status(&old).await, 200);
        // The digests in memory may be a second older than a new key.
        let new = key(&world, "new", Access::Reader).await;
        eventually("the new key is accepted", async || {
            guess(guesses).await;
            status(&new).await == 200
        })
        .await;
        revoke(&world, "new").await;
        eventually("a revoked key is a guess like any other", async || status(&new).await == 429).await;
    }

    async fn an_agent_s_key_acts_as_its_agent_alone(world: World) {
        let alice = key(&world, "alice", Access::Agent).await;
        let bob = key(&world, "bob", Access::Agent).await;
        world.send(with(post("task/add", r#"{"board":"auth","title":"one"}"#), &alice)).await;
        let mut claim = with(post("task/claim", r#"{"run":"r"}"#), &alice);
        claim.headers_mut().insert("fence-agent", "bob".parse().unwrap());
        let claimed: Value = serde_json::from_str(&text(world.send(claim).await).await).unwrap();
        assert_eq!(claimed["claim"]["agent"], "alice", "{claimed}");
        let done = post("task/done", r#"{"token":"task/auth-1@1"}"#);
        assert_eq!(world.send(with(done, &bob)).await.status(), 403);
        let done = post("task/done", r#"{"token":"task/auth-1@1"}"#);
        assert_eq!(world.send(with(done, &alice)).await.status(), 200);
    }
}

#[tokio::test]
async fn once_the_fleet_has_a_key_every_caller_needs_one() {
    let world = World::sqlite().await;
    assert_eq!(world.send(get("/v1/task/list")).await.status(), 200, "no key is needed while there is none");
    // A new server has no cached keys.
    let world = world.with(|_| {});
    let secret = key(&world, "lead", Access::Admin).await;
    let mut answers = Vec::new();
    let basic = request("GET", "/v1/task/list")
        .header("authorization", "Basic bGVhZDpsZWFk")
        .body(Body::empty())
        .unwrap();
    for (what, request) in [
        ("no key", get("/v1/task/list")),
        ("an unknown key", with(get("/v1/task/list"), "fence_00")),
        ("another scheme", basic),
        ("an unknown path", get("/dance")),
        ("an unknown op", post("lock/dance", "{}")),
    ] {
        answers.push(format!("# {what}\n{}", world.exchange(request).await));
    }
    insta::assert_snapshot!(answers.join("\n\n"));
    for path in ["/metrics", "/v1/events"] {
        assert_eq!(world.send(get(path)).await.status(), 401, "{path}");
        assert_eq!(world.send(with(get(path), &secret)).await.status(), 200, "{path}");
    }
    assert_eq!(world.send(get("/healthz")).await.status(), 200, "it is public");
    assert_eq!(readiness(&world).await.0, 200, "it is public");
    revoke(&world, "lead").await;
    let world = world.with(|_| {});
    assert_eq!(world.send(with(get("/v1/task/list"), &secret)).await.status(), 401, "revoked");
    assert_eq!(
        world.send(get("/v1/task/list")).await.status(),
        401,
        "without its last key the fleet stays closed"
    );
    let anew = post("key/add", r#"{"name":"me","role":"admin"}"#);
    assert_eq!(world.send(anew).await.status(), 401, "nobody can make themselves an admin");
}

/// A proxy on this machine calls for clients on other machines.
#[tokio::test]
async fn without_a_key_a_proxy_is_refused() {
    let world = World::sqlite().await;
    let through = |name: &'static str| {
        let mut request = get("/v1/task/list");
        request.headers_mut().insert(name, "203.0.113.7".parse().unwrap());
        request
    };
    for name in ["forwarded", "via", "x-forwarded-for", "x-forwarded-proto", "x-real-ip", "cf-connecting-ip"]
    {
        assert_eq!(world.send(through(name)).await.status(), 403, "{name}");
    }
    let secret = key(&world, "lead", Access::Admin).await;
    let world = world.with(|_| {});
    assert_eq!(world.send(with(through("via"), &secret)).await.status(), 200, "with a key it is accepted");
}

#[tokio::test]
async fn guessing_keys_is_slow() {
    let world = World::sqlite().await;
    key(&world, "lead", Access::Admin).await;
    // Twenty at once and twenty a second: how many are accepted depends on the machine.
    let mut guesses = 0;
    loop {
        let guess = with(get("/v1/task/list"), &format!("fence_{guesses}"));
        match world.send(guess).await.status().as_u16() {
            401 => guesses += 1,
            status => break assert_eq!((status, guesses >= 20), (429, true), "{guesses} guesses"),
        }
        assert!(guesses < 1000, "guessing is not slowed down");
    }
}

/// The head of a request is accepted, and its body arrives late.
#[tokio::test]
async fn a_key_that_is_revoked_while_a_body_arrives_is_refused() {
    let world = World::sqlite().await.with(|settings| settings.key_trust = Duration::ZERO);
    let secret = key(&world, "ann", Access::Agent).await;
    let (more, rest) = tokio::sync::oneshot::channel::<Bytes>();
    let (begun, reading) = tokio::sync::oneshot::channel::<()>();
    let body = futures_util::stream::once(async move {
        let _ = begun.send(());
        rest.await
    });
    let request = request("POST", "/v1/task/add").header("content-type", "application/json");
    let request = with(request.body(Body::from_stream(body)).unwrap(), &secret);
    let adding = {
        let world = world.clone();
        tokio::spawn(async move { world.send(request).await.status() })
    };
    reading.await.expect("its head was accepted");
    revoke(&world, "ann").await;
    more.send(Bytes::from_static(br#"{"board":"auth","title":"late"}"#)).expect("it is read");
    assert_eq!(adding.await.unwrap(), 401);
}

/// Past the limit, guesses are refused without a question to the database. Known keys are still accepted.
#[tokio::test]
async fn guesses_past_the_limit_cost_the_database_nothing() {
    let world = World::sqlite().await.with(|settings| {
        (settings.guess_rate, settings.key_trust) = (1, Duration::ZERO);
    });
    let secret = key(&world, "lead", Access::Reader).await;
    assert_eq!(world.send(with(get("/v1/task/list"), &secret)).await.status(), 200);
    let (statements, began) = (|| world.fleet.stats().statements, Instant::now());
    let guess =
        async |n: i32| world.send(with(get("/v1/task/list"), &format!("fence_{n}"))).await.status().as_u16();
    let before = statements();
    assert_eq!(guess(0).await, 401);
    let (each, before) = (statements() - before, statements());
    let (mut looked_up, mut refused) = (0, 0);
    for n in 1..=50 {
        match guess(n).await {
            // A second has passed.
            401 => looked_up += 1,
            429 => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert!(each > 0 && refused > 0, "{each}, {refused}");
    // The first guess also read the digests of all keys, and later ones read them again once a second at most.
    let most = each * (looked_up + began.elapsed().as_secs() + 1);
    assert!(statements() - before <= most, "{} statements, {most} at most", statements() - before);
    assert_eq!(
        world.send(with(get("/v1/task/list"), &secret)).await.status(),
        200,
        "a known key is accepted"
    );
}

#[tokio::test]
async fn each_key_has_a_rate() {
    let world = World::sqlite().await.with(|settings| settings.key_rate = 5);
    let (one, other) = (key(&world, "one", Access::Reader).await, key(&world, "other", Access::Reader).await);
    // Five at once and five a second: how many are accepted depends on the machine.
    let mut accepted = 0;
    let refused = loop {
        let answer = world.exchange(with(get("/v1/task/list"), &one)).await;
        if !answer.starts_with("200") {
            break answer;
        }
        accepted += 1;
        assert!(accepted < 1000, "there is no rate");
    };
    assert!(accepted >= 5, "{accepted}");
    assert!(
        refused.starts_with("429")
            && refused.contains("\"rate_limited\"")
            && refused.contains("retry-after: 1"),
        "{refused}"
    );
    assert_eq!(world.send(with(get("/v1/task/list"), &other)).await.status(), 200);
}

#[tokio::test]
async fn an_address_of_the_network_needs_a_key() {
    let world = World::sqlite().await;
    let everywhere = || App::new(world.fleet.clone(), Settings::new("0.0.0.0:0".parse().unwrap()));
    let refused = Server::bind(everywhere()).await.unwrap_err();
    insta::assert_snapshot!(serde_json::to_string(&refused).unwrap());
    // A loopback server with a name of its own is behind a proxy.
    let mut settings = Settings::new("127.0.0.1:0".parse().unwrap());
    settings.names = vec!["fleet.example".into()];
    let named = || App::new(world.fleet.clone(), settings.clone());
    let refused = Server::bind(named()).await.unwrap_err();
    insta::assert_snapshot!("a_name_needs_a_key", serde_json::to_string(&refused).unwrap());
    key(&world, "lead", Access::Admin).await;
    Server::bind(named()).await.expect("with a key it is allowed");
    Server::bind(everywhere()).await.expect("with a key it is allowed");
    // The last key is revoked while the server runs.
    let world = world.with(|settings| settings.listen = "0.0.0.0:0".parse().unwrap());
    revoke(&world, "lead").await;
    assert_eq!(world.send(get("/v1/task/list")).await.status(), 401, "it still needs a key");
}
