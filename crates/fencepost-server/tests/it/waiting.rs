//! Requests that wait and followers of the log: woken, dropped, refused.

use crate::world::{World, get, post, text};
use axum::{body::Body, http::Request, response::Response};
use fencepost::{Access, key, task};
use fencepost_testing::{PATIENCE, on_both};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::sync::Notify;

/// A request in progress, as a connection drives it.
fn send(world: &World, op: &str, body: Value) -> tokio::task::JoinHandle<Response> {
    let (world, request) = (world.clone(), post(op, &body.to_string()));
    tokio::spawn(async move { world.send(request).await })
}

/// A fleet whose only task is claimed. On an empty or finished board a claim does not wait.
async fn claim_the_only_task(world: &World) {
    world.ok("task/add", json!({ "board": "auth", "title": "held" })).await;
    world.ok("task/claim", json!({ "run": "other" })).await;
}

/// Waits until this many calls wait in the engine.
async fn until_waiting(world: &World, n: u64) {
    let reached = async {
        while world.fleet.stats().waiting != n {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.expect("they wait");
}

on_both! {
    async fn a_waiting_claim_is_woken(world: World) {
        claim_the_only_task(&world).await;
        let waiting = send(&world, "task/claim", json!({ "run": "r", "wait_ms": 600_000 }));
        until_waiting(&world, 1).await;
        world.ok("task/add", json!({ "board": "auth", "title": "one" })).await;
        let response = waiting.await.unwrap();
        assert_eq!(response.status(), 200);
        let claimed: Value = serde_json::from_str(&text(response).await).unwrap();
        assert_eq!(claimed["claim"]["token"], "task/auth-2@1");
    }

    async fn hanging_up_ends_a_wait_at_once(world: World) {
        claim_the_only_task(&world).await;
        let waiting = send(&world, "task/claim", json!({ "run": "gone", "wait_ms": 600_000 }));
        until_waiting(&world, 1).await;
        waiting.abort();
        until_waiting(&world, 0).await;
        world.ok("task/add", json!({ "board": "auth", "title": "one" })).await;
        let claimed = world.ok("task/claim", json!({ "run": "here" })).await;
        assert_eq!(claimed["claim"]["token"], "task/auth-2@1", "nothing was claimed for the client that hung up");
    }

    async fn a_stop_ends_every_wait_and_asks_to_retry(world: World) {
        claim_the_only_task(&world).await;
        let claims = send(&world, "task/claim", json!({ "run": "r", "wait_ms": 600_000 }));
        let reads = send(&world, "event/list", json!({ "since": "0.0", "kind": "none", "wait_ms": 600_000 }));
        until_waiting(&world, 2).await;
        world.app.stop();
        for waiting in [claims, reads] {
            let response = waiting.await.unwrap();
            assert_eq!(response.status(), 503);
            assert_eq!(text(response).await, r#"{"error":{"code":"unavailable","message":"the server is stopping","hint":"retry: nothing was claimed for you"}}"#);
        }
        // Calls that do not wait are still served.
        world.ok("task/add", json!({ "board": "auth", "title": "one" })).await;
    }

    async fn waiting_requests_are_limited(world: World) {
        claim_the_only_task(&world).await;
        let world = world.with(|settings| settings.waiters = 2);
        let waiting = [
            send(&world, "task/claim", json!({ "run": "a", "wait_ms": 600_000 })),
            send(&world, "task/claim", json!({ "run": "b", "wait_ms": 600_000 })),
        ];
        until_waiting(&world, 2).await;
        let answer = world.exchange(post("task/claim", r#"{"run":"c","wait_ms":600000}"#)).await;
        insta::assert_snapshot!("too_many_waiters", answer);
        assert_eq!(world.send(get("/v1/events")).await.status(), 429, "a follower counts, too");
        let (status, answer) = world.post("task/claim", json!({ "run": "c" })).await;
        assert_eq!((status, &answer["error"]["code"]), (409, &json!("none_ready")), "a call that does not wait is served");
        for one in waiting {
            one.abort();
        }
        until_waiting(&world, 0).await;
        let again = send(&world, "task/claim", json!({ "run": "c", "wait_ms": 600_000 }));
        until_waiting(&world, 1).await;
        again.abort();
    }

    /// One key cannot use up the permits of another.
    async fn waiting_requests_are_limited_for_each_key(world: World) {
        claim_the_only_task(&world).await;
        let world = world.with(|settings| settings.key_waiters = 2);
        let mut secrets = Vec::new();
        for name in ["eye", "ear"] {
            secrets.push(world.fleet.call(key::Add::new(name, Access::Reader)).await.unwrap().secret);
        }
        let wait_request = |secret: &str| {
            let mut request = post("task/wait", r#"{"tasks":["auth-1"],"wait_ms":600000}"#);
            request.headers_mut().insert("authorization", format!("Bearer {secret}").parse().unwrap());
            request
        };
        let waits = |secret: &str| {
            let (world, request) = (world.clone(), wait_request(secret));
            tokio::spawn(async move { world.send(request).await })
        };
        let own = [waits(&secrets[0]), waits(&secrets[0])];
        until_waiting(&world, 2).await;
        let answer = world.exchange(wait_request(&secrets[0])).await;
        insta::allow_duplicates! {
            insta::assert_snapshot!(answer, @r#"
            429 Too Many Requests
            retry-after: 1
            {"error":{"code":"rate_limited","message":"key `eye` has reached its limit of 2 waiting requests","hint":"retry later, or without waiting; fence serve --key-waiters sets the limit","retry_after_ms":1000}}
            "#);
        }
        let another = waits(&secrets[1]);
        until_waiting(&world, 3).await;
        own.into_iter().chain([another]).for_each(|waiting| waiting.abort());
        until_waiting(&world, 0).await;
        // Without a key the address is the caller.
        let open = World::sqlite().await.with(|settings| settings.key_waiters = 1);
        claim_the_only_task(&open).await;
        let waiting = send(&open, "task/claim", json!({ "run": "a", "wait_ms": 600_000 }));
        until_waiting(&open, 1).await;
        let answer = open.exchange(post("task/claim", r#"{"run":"b","wait_ms":600000}"#)).await;
        assert!(answer.starts_with("429") && answer.contains("127.0.0.1 has reached its limit of 1 waiting"), "{answer}");
        waiting.abort();
    }

    /// The claim is committed, and its reply never reaches the socket.
    async fn a_claim_whose_client_is_gone_is_given_back(world: World) {
        world.ok("task/add", json!({ "board": "auth", "title": "one" })).await;
        for (op, resource, request) in [
            ("task/claim", "task/auth-1", json!({ "run": "gone", "request": "q-1" })),
            ("task/claim", "task/auth-1", json!({ "run": "gone", "wait_ms": 1000 })),
            ("task/claim_many", "task/auth-1", json!({ "run": "gone", "count": 3 })),
            ("lock/claim", "lock/deploy", json!({ "name": "deploy", "run": "gone" })),
        ] {
            let response = world.send(post(op, &request.to_string())).await;
            assert_eq!(response.status(), 200, "{op}");
            assert!(claims(&world).await.contains(&resource.to_owned()), "{op} holds it");
            drop(response);
            until_given_back(&world).await;
        }
        let shown = world.ok("task/show", json!({ "task": "auth-1" })).await;
        assert_eq!(shown["task"]["attempts"], 0, "no attempt is counted");
    }

    async fn a_delivered_claim_stays_claimed(world: World) {
        world.ok("task/add", json!({ "board": "auth", "title": "one" })).await;
        world.ok("task/claim", json!({ "run": "r" })).await;
        // Giving it back would take a millisecond or two.
        for _ in 0..50 {
            assert_eq!(claims(&world).await, ["task/auth-1"]);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Clients hang up at any moment, while their claims are in progress.
    async fn clients_that_hang_up_at_any_moment_hold_nothing(world: World) {
        for n in 0..20 {
            world.ok("task/add", json!({ "board": "auth", "title": n.to_string() })).await;
        }
        for n in 0..60_u64 {
            let wait = if n % 2 == 0 { json!(60_000) } else { Value::Null };
            let claiming = send(&world, "task/claim", json!({ "run": format!("r-{n}"), "wait_ms": wait }));
            tokio::time::sleep(Duration::from_micros(n * 50)).await;
            claiming.abort();
            // An answer that had arrived is dropped unread.
            drop(claiming.await);
        }
        until_given_back(&world).await;
    }

    /// A stream and a waiting claim end when their key is revoked.
    async fn a_revoked_key_gets_nothing_more(world: World) {
        claim_the_only_task(&world).await;
        let world = world.with(|settings| settings.key_trust = Duration::ZERO);
        let secret = world.fleet.call(key::Add::new("ann", Access::Agent)).await.unwrap().secret;
        let with = |mut request: Request<Body>| {
            request.headers_mut().insert("authorization", format!("Bearer {secret}").parse().unwrap());
            request
        };
        let mut follower = Follower::send(&world, with(get("/v1/events?since=start&kind=task.claimed"))).await;
        let claiming = {
            let (world, claim) = (world.clone(), with(post("task/claim", r#"{"run":"r","wait_ms":600000}"#)));
            tokio::spawn(async move { world.send(claim).await })
        };
        // On PostgreSQL an event can be read only once older transactions have ended.
        assert_eq!(follower.next().await["kind"], "task.claimed");
        until_waiting(&world, 2).await;
        world.fleet.call(key::Revoke::new("ann")).await.unwrap();
        world.fleet.call(task::Add::new("auth", "fresh")).await.unwrap();
        assert_eq!(claiming.await.unwrap().status(), 401);
        let claimed = world.fleet.call(task::Claim::next("auth", "here")).await.unwrap().claim;
        assert_eq!(claimed.token, "task/auth-2@1", "nothing was claimed for the revoked key");
        let rest = follower.rest().await;
        assert!(!rest.contains("task.claimed"), "{rest}");
        assert!(rest.ends_with("\n\n") && rest.contains("event: error\ndata: {\"error\":{\"code\":\"unauthorized\""), "{rest}");
    }

    async fn the_log_is_followed_as_it_grows(world: World) {
        world.ok("task/add", json!({ "board": "auth", "title": "before" })).await;
        let mut all = Follower::of(&world, "/v1/events?since=start", None).await;
        let mut new = Follower::of(&world, "/v1/events?kind=task.claimed", None).await;
        assert_eq!(all.next().await["resource"], "task/auth-1");
        world.ok("task/claim", json!({ "run": "r" })).await;
        assert_eq!(new.next().await["kind"], "task.claimed");
        let claimed = all.next().await;
        assert_eq!(claimed["kind"], "task.claimed");
        drop((all, new));
        until_waiting(&world, 0).await;
        world.ok("task/done", json!({ "token": "task/auth-1@1" })).await;
        world.ok("task/add", json!({ "board": "auth", "title": "two" })).await;
        let position = claimed["position"].as_str().unwrap();
        let mut resumed = Follower::of(&world, "/v1/events?resource=task/auth-1", Some(position)).await;
        assert_eq!(resumed.next().await["kind"], "task.completed", "nothing is missed and nothing is sent twice");
        world.app.stop();
        insta::assert_snapshot!("follower_at_the_end", resumed.rest().await);
    }
}

async fn claims(world: &World) -> Vec<String> {
    let list = world.ok("claim/list", json!({ "limit": 1000 })).await;
    list["claims"]
        .as_array()
        .unwrap()
        .iter()
        .map(|claim| claim["resource"].as_str().unwrap().to_owned())
        .collect()
}

/// Waits until nothing is claimed. The aim is 2 s, but giving back is a commit, and some disks take that long for one.
async fn until_given_back(world: &World) {
    let given_back = async {
        while !claims(world).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, given_back).await.expect("all is given back");
}

struct Follower {
    body: Body,
    text: String,
}

impl Follower {
    async fn of(world: &World, path: &str, last: Option<&str>) -> Self {
        let mut request = get(path);
        if let Some(last) = last {
            request.headers_mut().insert("last-event-id", last.parse().unwrap());
        }
        Self::send(world, request).await
    }

    async fn send(world: &World, request: Request<Body>) -> Self {
        let response = world.send(request).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { body: response.into_body(), text: String::new() }
    }

    /// The next event that has data.
    async fn next(&mut self) -> Value {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let data = block.lines().find_map(|line| line.strip_prefix("data: ").map(str::to_owned));
                self.text = rest.to_owned();
                if let Some(data) = data {
                    return serde_json::from_str(&data).unwrap();
                }
                continue;
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await;
            let frame = frame.expect("something comes").expect("it goes on").unwrap();
            self.text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        }
    }

    /// The rest of the stream, to its end.
    async fn rest(self) -> String {
        let rest = tokio::time::timeout(PATIENCE, self.body.collect()).await;
        let rest = rest.expect("it ends").unwrap().to_bytes();
        self.text + std::str::from_utf8(&rest).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_follower_is_disconnected_and_can_continue() {
    let world = World::sqlite().await.with(|settings| settings.slow_reader = Duration::from_millis(50));
    let plan: Vec<_> = (0..2000).map(|n| json!({ "title": format!("task {n}") })).collect();
    world.ok("task/plan", json!({ "board": "auth", "tasks": plan })).await;
    // It reads nothing until the server gave up.
    let slow = Follower::of(&world, "/v1/events?since=start", None).await;
    let gave_up = async {
        while world.app.usage().waiters > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gave_up).await.expect("the server gives up");
    let text = slow.rest().await;
    let (seen, last) = text.rsplit_once("event: error\n").expect("a last message");
    insta::assert_snapshot!(last.trim_end());
    let seen: Vec<_> = seen.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    assert!(seen.len() < 1500, "the buffer is limited: {}", seen.len());
    let mut resumed = Follower::of(&world, "/v1/events", seen.last().copied()).await;
    let all = world.ok("event/list", json!({ "limit": 1000, "since": seen.last() })).await;
    assert_eq!(resumed.next().await["position"], all["events"][0]["position"]);
}

#[tokio::test]
async fn a_follower_gets_an_error_for_a_wrong_request() {
    let world = World::sqlite().await;
    world.ok("task/add", json!({ "board": "auth", "title": "old" })).await;
    let mut answers = Vec::new();
    for path in ["/v1/events?limit=5", "/v1/events?from=2026-01-01T00:00:00Z", "/v1/events?colour=red"] {
        answers.push(world.exchange(get(path)).await);
    }
    world.pass_in_use(40 * 86_400).await;
    world.ok("event/prune", json!({})).await;
    let pruned = Follower::of(&world, "/v1/events", Some("0.0")).await;
    answers.push(pruned.rest().await);
    answers.push(world.exchange(get("/v1/events?since=nonsense%0adata:%20x")).await);
    insta::assert_snapshot!(answers.join("\n\n"));
}

/// On PostgreSQL transactions commit in another order than their events are numbered. A transaction that began first and
/// commits last is not missed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_misses_nothing_while_transactions_commit_in_reverse_order() {
    const TRANSACTIONS: usize = 6;
    let world = World::postgres().await;
    let mut follower = Follower::of(&world, "/v1/events?since=start&kind=task.added", None).await;
    let mut open = Vec::new();
    for n in 0..TRANSACTIONS {
        let (written, commit) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (fleet, has_written, may_commit) = (world.fleet.clone(), written.clone(), commit.clone());
        let committed = tokio::spawn(async move {
            let work = fleet.transaction(move |tx| {
                let (has_written, may_commit) = (has_written.clone(), may_commit.clone());
                Box::pin(async move {
                    tx.call(task::Add::new(format!("board{n}"), "one")).await?;
                    has_written.notify_one();
                    may_commit.notified().await;
                    Ok(())
                })
            });
            work.await.expect("committed");
        });
        written.notified().await;
        open.push((commit, committed));
    }
    for (commit, committed) in open.into_iter().rev() {
        commit.notify_one();
        committed.await.expect("it committed");
    }
    let mut seen = Vec::new();
    for _ in 0..TRANSACTIONS {
        seen.push(follower.next().await["resource"].as_str().expect("a resource").to_owned());
    }
    seen.sort();
    let all: Vec<_> = (0..TRANSACTIONS).map(|n| format!("task/board{n}-1")).collect();
    assert_eq!(seen, all);
    world.assert_sound().await;
}
