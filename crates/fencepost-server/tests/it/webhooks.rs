//! Webhooks: a signed event of Slack or GitHub is accepted once; everything else is refused.

use crate::world::{World, get, post, text};
use axum::{
    body::Body,
    http::{HeaderName, Request},
};
use bytes::Bytes;
use fencepost::{Fleet, Time, inbox, key, route};
use fencepost_server::{Secret, Settings};
use fencepost_testing::{PATIENCE, on_both};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::sync::Semaphore;

const SLACK: &str = "8f742231b10e8888abcd99yyyzzz85a5";
const GITHUB: &str = "It's a Secret to Everybody";

fn signature(secret: &str, text: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("any key");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A provider's request. It may name any Host that leads here.
fn request(path: &str, body: &str, headers: &[(&str, String)]) -> Request<Body> {
    let request = Request::builder().method("POST").uri(path).header("host", "hooks.example.com");
    let request = request.header("content-type", "application/json");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
    request.body(Body::from(body.to_owned())).expect("a request")
}

fn slack_at(at: i64, body: &str) -> Request<Body> {
    let signed = signature(SLACK, &format!("v0:{at}:{body}"));
    let headers =
        [("x-slack-request-timestamp", at.to_string()), ("x-slack-signature", format!("v0={signed}"))];
    request("/hooks/slack", body, &headers)
}

fn slack(body: &str) -> Request<Body> {
    slack_at(start(), body)
}

/// The time at which every test begins.
fn start() -> i64 {
    "2026-01-01T12:00:00Z".parse::<Time>().expect("a time").0 / 1000
}

fn github(event: &str, delivery: &str, body: &str) -> Request<Body> {
    let headers = [
        ("x-github-event", event.to_owned()),
        ("x-github-delivery", delivery.to_owned()),
        ("x-hub-signature-256", format!("sha256={}", signature(GITHUB, body))),
    ];
    request("/hooks/github", body, &headers)
}

fn post_of(id: &str, words: &str) -> String {
    let event = json!({ "type": "message", "channel": "C1", "user": "U1", "text": words, "ts": format!("{}.1", id.len()) });
    json!({ "type": "event_callback", "team_id": "T1", "event_id": id, "event": event }).to_string()
}

fn issue(action: &str, title: &str) -> String {
    json!({
        "action": action,
        "issue": { "title": title, "html_url": "https://github.com/acme/api/issues/7" },
        "repository": { "full_name": "acme/api" },
        "sender": { "login": "kim", "type": "User" },
    })
    .to_string()
}

/// The fleet, served with both secrets.
fn with_secrets(world: &World) -> World {
    with_secrets_and(world, |_| {})
}

fn with_secrets_and(world: &World, change: impl FnOnce(&mut Settings)) -> World {
    world.with(|settings| {
        change(settings);
        settings.slack_secret = Secret::new(SLACK).into_iter().collect();
        settings.github_secret = Secret::new(GITHUB).into_iter().collect();
    })
}

impl World {
    /// The status, and the outcome or the code.
    async fn send_webhook(&self, request: Request<Body>) -> (u16, String) {
        let response = self.send(request).await;
        let status = response.status().as_u16();
        let reply: Value = serde_json::from_str(&text(response).await).expect("JSON");
        let outcome = reply["outcome"].as_str().or(reply["error"]["code"].as_str());
        (status, outcome.unwrap_or("-").to_owned())
    }

    async fn route(&self, source: &str, agent: &str) {
        let add = route::Add { source: source.into(), agent: agent.into(), ..Default::default() };
        self.fleet.call(add).await.expect("a route");
    }
}

async fn texts(fleet: &Fleet, agent: &str) -> Vec<String> {
    let items =
        fleet.call(inbox::List { agent: agent.into(), ..Default::default() }).await.expect("a list").items;
    items.into_iter().filter_map(|item| Some(item.content?.text)).collect()
}

fn ok(outcome: &str) -> (u16, String) {
    (200, outcome.to_owned())
}

/// Sends all at the same moment. Returns how many were routed and how many were repeats.
async fn at_once(world: &World, make: impl Fn() -> Request<Body>, times: usize) -> (usize, usize) {
    let calls: Vec<_> = (0..times)
        .map(|_| {
            let (world, request) = (world.clone(), make());
            tokio::spawn(async move { world.send_webhook(request).await })
        })
        .collect();
    let mut counts = (0, 0);
    for call in calls {
        match call.await.expect("no panic") {
            (200, outcome) if outcome == "routed" => counts.0 += 1,
            (200, outcome) if outcome == "repeated" => counts.1 += 1,
            other => panic!("{other:?}"),
        }
    }
    counts
}

on_both! {
    /// Slack retries up to three times, each time signed anew; also at the same moment, and to a restarted server.
    async fn slacks_retries_make_one_message(world: World) {
        let world = with_secrets(&world);
        world.route("slack", "bob").await;
        let body = post_of("Ev1", "hello");
        assert_eq!(at_once(&world, || slack(&body), 16).await, (1, 15));
        let restarted = with_secrets(&world);
        for retry in 1..=3 {
            world.clock.advance(Duration::from_secs(60));
            let mut again = slack_at(start() + 60 * retry, &body);
            again.headers_mut().insert("x-slack-retry-num", retry.to_string().parse().expect("a number"));
            assert_eq!(restarted.send_webhook(again).await, ok("repeated"), "retry {retry}");
        }
        assert_eq!(texts(&world.fleet, "bob").await, ["hello"]);
    }

    async fn a_storm_of_one_event_is_one_message(world: World) {
        let world = with_secrets(&world);
        world.route("slack", "bob").await;
        world.route("github", "lead").await;
        let (post, opened) = (post_of("Ev1", "hello"), issue("opened", "it fails"));
        assert_eq!(at_once(&world, || slack(&post), 100).await, (1, 99));
        assert_eq!(at_once(&world, || github("issues", "d1", &opened), 100).await, (1, 99));
        assert_eq!(texts(&world.fleet, "bob").await, ["hello"]);
        assert_eq!(texts(&world.fleet, "lead").await, ["it fails"]);
        let metrics = text(world.send(get("/metrics")).await).await;
        for line in [
            r#"fence_ops_total{op="hooks/slack",outcome="routed"} 1"#,
            r#"fence_ops_total{op="hooks/slack",outcome="repeated"} 99"#,
        ] {
            assert!(metrics.lines().any(|other| other == line), "{line} is not in\n{metrics}");
        }
    }

    async fn a_wrong_signature_is_refused(world: World) {
        let world = with_secrets(&world);
        world.route("slack", "bob").await;
        world.route("github", "bob").await;
        let now = start();
        let body = post_of("Ev1", "hello");
        let with = |name: &'static str, value: &str| {
            let mut request = slack(&body);
            match value {
                "" => drop(request.headers_mut().remove(name)),
                value => drop(request.headers_mut().insert(name, value.parse().expect("a value"))),
            }
            request
        };
        let other = signature("another", &format!("v0:{now}:{body}"));
        let own = signature(SLACK, &format!("v0:{now}:{body}"));
        for (why, request) in [
            ("another secret", with("x-slack-signature", &format!("v0={other}"))),
            ("no signature", with("x-slack-signature", "")),
            ("no time", with("x-slack-request-timestamp", "")),
            ("no version", with("x-slack-signature", &own)),
            ("another version", with("x-slack-signature", &format!("v1={own}"))),
            ("half of it", with("x-slack-signature", &format!("v0={}", &own[..32]))),
            ("another time", with("x-slack-request-timestamp", &(now + 1).to_string())),
            ("no number", with("x-slack-request-timestamp", "now")),
            ("another body", {
                let (head, _) = slack(&body).into_parts();
                Request::from_parts(head, Body::from(post_of("Ev2", "hello")))
            }),
            ("an old time", slack_at(now - 301, &body)),
            ("a future time", slack_at(now + 301, &body)),
            ("the end of time", slack_at(i64::MAX, &body)),
        ] {
            assert_eq!(world.send_webhook(request).await, (401, "unauthorized".into()), "{why}");
        }
        let opened = issue("opened", "it fails");
        let mut unsigned = github("issues", "d1", &opened);
        unsigned.headers_mut().remove("x-hub-signature-256");
        assert_eq!(world.send_webhook(unsigned).await, (401, "unauthorized".into()));
        let mut forged = github("issues", "d1", &opened);
        *forged.body_mut() = Body::from(issue("closed", "it fails"));
        assert_eq!(world.send_webhook(forged).await, (401, "unauthorized".into()));
        assert!(texts(&world.fleet, "bob").await.is_empty());
        let kept = world.fleet.call(route::Unmatched::default()).await.expect("a list");
        assert!(kept.messages.is_empty(), "{kept:?}");

        // Valid signatures are accepted up to the edges of the window.
        for (id, at) in [("Ev1", now - 300), ("Ev02", now + 300)] {
            assert_eq!(world.send_webhook(slack_at(at, &post_of(id, "hello"))).await, ok("routed"), "{id}");
        }
        // A replay is a repeat at first, and refused once it is old.
        let copy = || slack_at(now - 300, &post_of("Ev1", "hello"));
        assert_eq!(world.send_webhook(copy()).await, ok("repeated"));
        world.clock.advance(Duration::from_secs(1));
        assert_eq!(world.send_webhook(copy()).await, (401, "unauthorized".into()));
        assert_eq!(texts(&world.fleet, "bob").await.len(), 2);
    }

    /// GitHub does not sign the delivery id.
    async fn a_copy_under_another_delivery_id_is_dropped(world: World) {
        let world = with_secrets(&world);
        world.route("github", "lead").await;
        let opened = issue("opened", "it fails");
        assert_eq!(world.send_webhook(github("issues", "d1", &opened)).await, ok("routed"));
        assert_eq!(world.send_webhook(github("issues", "d1", &opened)).await, ok("repeated"));
        assert_eq!(world.send_webhook(github("issues", "d2", &opened)).await, ok("repeated"));
        assert_eq!(world.send_webhook(github("push", "d3", &opened)).await, ok("repeated"), "nor does it sign the event");
        world.clock.advance(Duration::from_secs(6 * 24 * 60 * 60));
        assert_eq!(with_secrets(&world).send_webhook(github("issues", "d4", &opened)).await, ok("repeated"));
        assert_eq!(world.send_webhook(github("issues", "d5", &issue("closed", "it fails"))).await, ok("routed"));
        assert_eq!(texts(&world.fleet, "lead").await.len(), 2);
    }

    async fn events_that_match_no_rule_are_kept(world: World) {
        let world = with_secrets(&world);
        let beep = json!({ "type": "message", "bot_id": "B1", "channel": "C1", "text": "beep", "ts": "9.1" });
        let bodies = [
            post_of("Ev1", "hello"),
            json!({ "type": "event_callback", "event_id": "Ev2", "event": beep }).to_string(),
            json!({ "type": "event_callback", "event_id": "Ev3", "event": { "type": "new_kind" } }).to_string(),
            json!({ "type": "app_rate_limited", "minute_rate_limited": 7 }).to_string(),
            json!(["odd"]).to_string(),
        ];
        for body in &bodies {
            assert_eq!(world.send_webhook(slack(body)).await, ok("unmatched"), "{body}");
            assert_eq!(world.send_webhook(slack(body)).await, ok("repeated"), "{body}");
        }
        assert_eq!(world.send_webhook(github("issues", "d1", &issue("opened", "it fails"))).await, ok("unmatched"));
        let kept = world.fleet.call(route::Unmatched::default()).await.expect("a list").messages;
        let texts_kept: Vec<_> = kept.iter().filter_map(|stray| Some(stray.content.as_ref()?.text.as_str())).collect();
        assert_eq!(texts_kept, ["hello", "beep", "new_kind", "app_rate_limited", "unknown", "it fails"]);
        world.route("slack", "bob").await;
        for stray in &kept {
            world.ok("route/again", json!({ "message": stray.id })).await;
        }
        assert_eq!(texts(&world.fleet, "bob").await, ["hello", "new_kind", "app_rate_limited", "unknown"]);
        let left = world.ok("route/unmatched", json!({})).await;
        assert_eq!(left["messages"].as_array().map(Vec::len), Some(2), "the bot's and GitHub's: {left}");
    }
}

/// From the provider's request to the inbox.
#[tokio::test]
async fn rules_match_the_fields_of_events() {
    let world = with_secrets(&World::sqlite().await);
    let add = |body: Value| world.ok("route/add", body);
    add(json!({ "source": "github", "repository": "acme/api", "event": "issues.opened", "agent": "triage" }))
        .await;
    add(json!({ "source": "github", "user": "kim", "agent": "friend" })).await;
    add(json!({ "source": "slack", "channel": "C1", "text": "deploy", "agent": "ops" })).await;
    for (request, agent) in [
        (github("issues", "d1", &issue("opened", "a")), "triage"),
        (github("issues", "d2", &issue("closed", "b")), "friend"),
        (slack(&post_of("Ev1", "please deploy")), "ops"),
    ] {
        let response = world.send(request).await;
        let reply: Value = serde_json::from_str(&text(response).await).expect("JSON");
        assert_eq!(
            (reply["outcome"].as_str(), reply["agent"].as_str()),
            (Some("routed"), Some(agent)),
            "{reply}"
        );
    }
    let shown = world.ok("inbox/list", json!({ "agent": "triage" })).await;
    let content = &shown["items"][0]["content"];
    assert_eq!(content["matched"], "source github, repository acme/api, event issues.opened");
    assert_eq!(content["thread"], "https://github.com/acme/api/issues/7");
    assert_eq!((&content["repository"], &content["sender"]), (&json!("acme/api"), &json!("kim")));
    assert_eq!(content["data"]["issue"]["title"], "a");
}

/// Before it sends events, a provider tests the address. These requests are signed, too.
#[tokio::test]
async fn a_handshake_is_answered() {
    let world = with_secrets(&World::sqlite().await);
    let verify = r#"{"type":"url_verification","challenge":"3eZbrw1a","token":"old"}"#;
    assert_eq!(text(world.send(slack(verify)).await).await, r#"{"challenge":"3eZbrw1a"}"#);
    let ping = r#"{"zen":"Design for failure.","hook_id":7}"#;
    assert_eq!(text(world.send(github("ping", "d1", ping)).await).await, r#"{"pong":"Design for failure."}"#);
    let mut unsigned = slack(verify);
    unsigned.headers_mut().remove("x-slack-signature");
    assert_eq!(world.send_webhook(unsigned).await.0, 401);
    let old = slack_at(start() - 301, verify);
    assert_eq!(world.send_webhook(old).await.0, 401);
    let kept = world.fleet.call(route::Unmatched::default()).await.expect("a list");
    assert!(kept.messages.is_empty(), "a handshake is no event");
}

#[tokio::test]
async fn a_refused_webhook_gets_a_clear_error() {
    let bare = World::sqlite().await;
    let empty = bare.with(|settings| settings.github_secret = Secret::new("").into_iter().collect());
    let world = with_secrets(&bare);
    let body = post_of("Ev1", "hello");
    let form = {
        let mut request = github("issues", "d1", "payload=%7B%7D");
        request
            .headers_mut()
            .insert("content-type", "application/x-www-form-urlencoded".parse().expect("a type"));
        request
    };
    let command = {
        let mut request = slack("command=%2Ffence");
        request
            .headers_mut()
            .insert("content-type", "application/x-www-form-urlencoded".parse().expect("a type"));
        request
    };
    let nameless = {
        let mut request = github("issues", "d1", "{}");
        request.headers_mut().remove("x-github-delivery");
        request
    };
    // Anybody could sign with an empty secret.
    let open = {
        let mut request = github("issues", "d1", "{}");
        let signed = format!("sha256={}", signature("", "{}"));
        request.headers_mut().insert("x-hub-signature-256", signed.parse().expect("a value"));
        request
    };
    let small = with_secrets_and(&bare, |settings| settings.hook_size = 100);
    let mut answers = Vec::new();
    for (what, answer) in [
        ("no secret for Slack", bare.exchange(slack(&body)).await),
        ("no secret for GitHub", bare.exchange(github("issues", "d1", "{}")).await),
        ("an empty secret", empty.exchange(open).await),
        ("a form of GitHub's", world.exchange(form).await),
        ("a slash command", world.exchange(command).await),
        ("no delivery id", world.exchange(nameless).await),
        ("not JSON", world.exchange(slack("{")).await),
        ("a cut emoji", world.exchange(slack(r#"{"type": "\ud83d"}"#)).await),
        ("too large", small.exchange(slack(&body)).await),
        ("too old", world.exchange(slack_at(0, &body)).await),
        ("not signed", world.exchange(request("/hooks/slack", &body, &[])).await),
        (
            "GET",
            world
                .exchange(Request::builder().uri("/hooks/slack").body(Body::empty()).expect("a request"))
                .await,
        ),
    ] {
        answers.push(format!("# {what}\n{answer}"));
    }
    insta::assert_snapshot!("webhooks", answers.join("\n\n"));
}

/// A provider needs no key. All other paths still do.
#[tokio::test]
async fn a_webhook_needs_no_key_and_opens_no_other_path() {
    let world = with_secrets(&World::sqlite().await);
    world.fleet.call(key::Add::new("lead", fencepost::Access::Admin)).await.expect("a key");
    let page = {
        let mut request = slack(&post_of("Ev1", "hello"));
        request.headers_mut().insert("origin", "https://evil.example".parse().expect("an origin"));
        request
    };
    assert_eq!(world.send_webhook(page).await, ok("unmatched"));
    for path in ["/hooks/slack/", "/hooks", "/hooks/other", "/v1/route/unmatched"] {
        assert_eq!(world.send(get(path)).await.status(), 401, "{path}");
    }
    assert_eq!(world.send(post("route/deliver", "{}")).await.status(), 401);
}

/// The body is neither waited for nor kept in memory.
#[tokio::test]
async fn wrong_signature_headers_are_refused_before_the_body_is_read() {
    let world =
        with_secrets_and(&World::sqlite().await, |settings| settings.body_time = Duration::from_secs(3600));
    let without = |mut request: Request<Body>, name: &str, value: Option<&str>| {
        request.headers_mut().remove(name);
        if let Some(value) = value {
            request
                .headers_mut()
                .insert(HeaderName::try_from(name).expect("a name"), value.parse().expect("a value"));
        }
        request
    };
    let slack = || slack("{}");
    let requests = [
        without(slack(), "x-slack-signature", None),
        without(slack(), "x-slack-signature", Some("v0=00")),
        without(slack(), "x-slack-request-timestamp", None),
        without(slack(), "x-slack-request-timestamp", Some("soon")),
        slack_at(start() - 301, "{}"),
        slack_at(start() + 400, "{}"),
        without(github("push", "d1", "{}"), "x-hub-signature-256", None),
        without(github("push", "d1", "{}"), "x-hub-signature-256", Some("sha1=00")),
    ];
    // Their bodies never end.
    let refused = requests.into_iter().map(async |mut request| {
        *request.body_mut() = Body::from_stream(futures_util::stream::pending::<Result<Bytes, Infallible>>());
        world.send_webhook(request).await
    });
    for (n, refused) in futures_util::future::join_all(refused).await.into_iter().enumerate() {
        assert_eq!(refused, (401, "unauthorized".into()), "{n}");
    }
}

/// Wrong signatures are slowed down; valid requests from the same address are not.
#[tokio::test]
async fn wrong_signatures_are_rate_limited() {
    let world = with_secrets(&World::sqlite().await);
    // Twenty at once and twenty a second: how many are accepted depends on the machine.
    let mut guesses = 0;
    loop {
        let mut guess = slack(&post_of("Ev1", "hello"));
        guess
            .headers_mut()
            .insert("x-slack-signature", format!("v0={}", "0".repeat(64)).parse().expect("a value"));
        match world.send_webhook(guess).await.0 {
            401 => guesses += 1,
            status => break assert_eq!((status, guesses >= 20), (429, true), "{guesses} guesses"),
        }
        assert!(guesses < 1000, "guessing is not slowed down");
    }
    assert_eq!(world.send_webhook(slack(&post_of("Ev1", "hello"))).await, ok("unmatched"));
}

/// Two secrets are valid during a change.
#[tokio::test]
async fn a_secret_can_be_changed_without_a_gap() {
    let world = World::sqlite().await;
    let world = world.with(|settings| {
        settings.slack_secret = ["new", SLACK].into_iter().filter_map(Secret::new).collect();
    });
    assert_eq!(world.send_webhook(slack(&post_of("Ev1", "hello"))).await, ok("unmatched"));
    assert!(!format!("{:?}", world.app).contains(SLACK), "`Debug` hides secrets");
}

/// The provider is told to retry, and the call runs to its end meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_does_not_answer_is_a_503() {
    let world = with_secrets_and(&World::postgres().await, |settings| {
        settings.request_time = Duration::from_millis(200)
    });
    let (gate, held) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (open, holds, fleet) = (gate.clone(), held.clone(), world.fleet.clone());
    let holder = tokio::spawn(async move {
        let hold = fleet.transaction(move |tx| {
            let (gate, held) = (gate.clone(), held.clone());
            Box::pin(async move {
                tx.execute("lock table delivery in exclusive mode", vec![]).await?;
                held.add_permits(1);
                drop(gate.acquire().await);
                Ok(())
            })
        });
        hold.await
    });
    drop(holds.acquire().await);
    let first = world.send_webhook(slack(&post_of("Ev1", "hello"))).await;
    assert_eq!(first, (503, "outcome_unknown".into()));
    open.add_permits(1);
    holder.await.expect("no panic").expect("committed");
    let kept = async || world.fleet.call(route::Unmatched::default()).await.expect("a list").messages.len();
    let finished = async {
        while kept().await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, finished).await.expect("the call runs to its end");
    // The retry is a repeat.
    assert_eq!(with_secrets(&world).send_webhook(slack(&post_of("Ev1", "hello"))).await, ok("repeated"));
    assert_eq!(kept().await, 1);
}

/// A delivery that failed does not count as seen.
#[tokio::test]
async fn a_failed_delivery_is_accepted_when_it_is_retried() {
    let world = with_secrets(&World::sqlite().await);
    let execute = |sql: &'static str| {
        world.fleet.transaction(move |tx| Box::pin(async move { tx.execute(sql, vec![]).await }))
    };
    execute("alter table message_doc rename to gone").await.expect("broken");
    assert_eq!(world.send_webhook(slack(&post_of("Ev1", "hello"))).await, (500, "internal".into()));
    execute("alter table gone rename to message_doc").await.expect("mended");
    assert_eq!(world.send_webhook(slack(&post_of("Ev1", "hello"))).await, ok("unmatched"));
}
