//! The OpenAPI document, the documentation page, and the metrics.

use crate::world::{self, World, get, text};
use axum::body::Body;
use fencepost::op;
use fencepost_testing::{PATIENCE, on_both};
use serde_json::{Value, json};

async fn document() -> Value {
    let world = World::sqlite().await;
    let (status, document) = world.get("/v1/openapi.json").await;
    assert_eq!(status, 200);
    document
}

/// Every `$ref` in a document.
fn references(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            let own = fields.get("$ref").and_then(Value::as_str).map(str::to_owned);
            own.into_iter().chain(fields.values().flat_map(references)).collect()
        }
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn the_document_has_every_op_and_no_dangling_reference() {
    let document = document().await;
    assert_eq!(document["openapi"], "3.1.0");
    let mut ids = std::collections::HashSet::new();
    for entry in op::registry() {
        let path = &document["paths"][format!("/v1/{}", entry.name)];
        assert_eq!(path["get"].is_object(), entry.reads, "{}", entry.name);
        for method in path.as_object().unwrap().values() {
            let id = method["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "{id} is there twice");
            assert!(!method["description"].as_str().unwrap().is_empty(), "{id} says nothing");
        }
    }
    for reference in references(&document) {
        let pointer = reference.strip_prefix('#').expect("a place in this document");
        assert!(document.pointer(pointer).is_some(), "{reference} is nowhere");
    }
    assert!(!document.to_string().contains("$defs"));
}

#[tokio::test]
async fn schemas_with_the_same_name_stay_apart() {
    let document = document().await;
    let schemas = &document["components"]["schemas"];
    let properties = |name: &str| schemas[name]["properties"].clone();
    assert!(
        properties("TaskClaimReply")["task"].is_object() && properties("LockClaimReply")["task"].is_null()
    );
    // The error of a whole request, and of a part of a batch. Found by `make fuzz`.
    assert!(properties("Refusal")["error"].is_object());
    let mut part = &schemas["MailOutcome"]["properties"]["error"]["anyOf"][0];
    while let Some(pointer) = part["$ref"].as_str() {
        part = document.pointer(&pointer[1..]).unwrap();
    }
    assert!(part["properties"]["code"].is_object(), "{part}");
    insta::assert_snapshot!(serde_json::to_string_pretty(&document["paths"]["/v1/claim/guard"]).unwrap());
}

on_both! {
    /// Every example of the page and the document can be sent as it stands.
    async fn every_example_is_accepted(world: World) {
        let (_, document) = world.get("/v1/openapi.json").await;
        let mut wrong = Vec::new();
        for entry in op::registry() {
            let post = &document["paths"][format!("/v1/{}", entry.name)]["post"];
            let example = post["requestBody"]["content"]["application/json"]["example"].clone();
            assert!(example.is_object(), "{}", entry.name);
            // With a key in the fleet, the other requests would need one.
            if entry.name == "key/add" {
                continue;
            }
            let (status, answer) = world.post(entry.name, example.clone()).await;
            if status == 400 || post["responses"].get(status.to_string()).is_none() {
                wrong.push(format!("{} {example}: {status} {answer}", entry.name));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// Found by `make fuzz`.
    async fn bodies_and_refusals_are_as_documented(world: World) {
        let (_, document) = world.get("/v1/openapi.json").await;
        let documented = |op: &str| document["paths"][format!("/v1/{op}")]["post"].clone();
        for entry in op::registry().into_iter().filter(|entry| entry.name != "key/add") {
            let nothing = world::request("POST", &format!("/v1/{}", entry.name)).body(Body::empty()).unwrap();
            let status = world.send(nothing).await.status().as_u16();
            let needed = documented(entry.name)["requestBody"]["required"] == true;
            assert!(status == 400 || !needed, "{} needs a body and answers {status} without", entry.name);
            assert!(documented(entry.name)["responses"].get(status.to_string()).is_some(), "{} {status}", entry.name);
        }
        world.ok("task/add", json!({ "board": "auth", "title": "one" })).await;
        world.ok("task/claim", json!({ "run": "here" })).await;
        world.ok("agent/join", json!({ "agent": "ann" })).await;
        let old = json!({ "opened_at": "2000-01-01T00:00:00Z", "expires_at": "2000-01-01T00:00:00Z" });
        for (op, request) in [
            ("run/renew", json!({ "run": "gone" })),
            ("run/end", json!({ "run": "here", "lease": old })),
            ("run/suspect", json!({ "run": "here", "lease": old })),
            ("agent/recall", json!({ "agent": "ann" })),
        ] {
            let (status, answer) = world.post(op, request).await;
            assert_eq!(status, 409, "{op}: {answer}");
            let refusals = documented(op)["responses"]["409"]["description"].to_string();
            assert!(refusals.contains(answer["error"]["code"].as_str().unwrap()), "{op}: {answer}, and not {refusals}");
        }
    }

    async fn metrics_count_calls_and_the_fleet(world: World) {
        // The first scrape starts the count of events.
        assert_eq!(world.send(get("/metrics")).await.status(), 200);
        for title in ["one", "two"] {
            world.ok("task/add", json!({ "board": "auth", "title": title })).await;
        }
        world.ok("task/claim", json!({ "run": "r", "ttl_ms": 1000 })).await;
        world.post("task/claim", json!({ "run": "s", "task": "auth-1" })).await;
        world.clock.advance(std::time::Duration::from_secs(2));
        world.ok("task/claim", json!({ "run": "s" })).await;
        world.ok("lock/claim", json!({ "name": "deploy", "run": "s" })).await;
        world.post("lock/claim", json!({ "name": "deploy", "run": "r" })).await;
        for _ in 0..2 {
            world.ok("mail/push", json!({ "mailbox": "builds" })).await;
        }
        world.ok("mail/claim", json!({ "mailboxes": ["builds"], "run": "s", "count": 1 })).await;
        let metrics = metrics_once(&world, r#"fence_claims_expired_total{noun="task"} 1"#).await;
        for line in [
            r#"fence_ops_total{op="task/add",outcome="ok"} 2"#,
            r#"fence_ops_total{op="task/claim",outcome="ok"} 2"#,
            r#"fence_claims_refused_total{noun="task",reason="already_claimed"} 1"#,
            r#"fence_claims_refused_total{noun="lock",reason="already_claimed"} 1"#,
            r#"fence_op_seconds_count{op="task/add"} 2"#,
            r#"fence_claims_expired_total{noun="task"} 1"#,
            r#"fence_claims_expired_total{noun="lock"} 0"#,
            r#"fence_claims_live{noun="task"} 1"#,
            r#"fence_claims_live{noun="lock"} 1"#,
            r#"fence_claims_live{noun="message"} 1"#,
            r#"fence_messages{mailbox="builds",status="ready"} 1"#,
            r#"fence_messages{mailbox="builds",status="processing"} 1"#,
            r#"fence_tasks{board="auth",status="in_progress"} 1"#,
            r#"fence_tasks_ready{board="auth"} 1"#,
            r#"fence_waiters 0"#,
        ] {
            assert!(metrics.lines().any(|other| other == line), "{line} is not in\n{metrics}");
        }
        let count = |name: &str| -> f64 {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}\n{metrics}"));
            line.trim().parse().expect("a number")
        };
        // On PostgreSQL each call is a transaction of its own.
        let is_sqlite = world.fleet.stats().batches > 0;
        assert_eq!(count("fence_batch_size_count ") > 5.0, is_sqlite, "{metrics}");
        assert_eq!(count("fence_batch_size_bucket{le=\"+Inf\"}"), count("fence_batch_size_count "));
        assert!(count("fence_batch_size_sum ") >= count("fence_batch_size_count "));
    }

    /// For every later state of the item. States that a caller brought about do not count.
    async fn metrics_count_every_claim_that_expired(world: World) {
        assert_eq!(world.send(get("/metrics")).await.status(), 200);
        for (mailbox, settings) in [
            ("again", json!({})),
            ("held", json!({ "replay": "hold" })),
            ("discarded", json!({ "replay": "discard" })),
            ("failed", json!({ "max_attempts": 1 })),
        ] {
            let mut settings = settings;
            settings["mailbox"] = json!(mailbox);
            world.ok("mail/configure", settings).await;
            world.ok("mail/push", json!({ "mailbox": mailbox })).await;
            world.ok("mail/claim", json!({ "mailboxes": [mailbox], "run": "dies", "ttl_ms": 1000 })).await;
        }
        for (board, attempts) in [("again", 2), ("failed", 1)] {
            world.ok("task/add", json!({ "board": board, "title": "one", "max_attempts": attempts })).await;
            world.ok("task/claim", json!({ "task": format!("{board}-1"), "run": "dies", "ttl_ms": 1000 })).await;
        }
        world.ok("lock/claim", json!({ "name": "deploy", "run": "dies", "ttl_ms": 1000 })).await;
        world.clock.advance(std::time::Duration::from_secs(2));

        // The same states, brought about by callers. They come last, so the metrics that have them have all.
        world.ok("lock/claim", json!({ "name": "deploy", "run": "lives" })).await;
        let message = world.ok("mail/push", json!({ "mailbox": "reported" })).await["message"]["id"].clone();
        world.ok("mail/discard", json!({ "messages": [message] })).await;
        world.ok("mail/push", json!({ "mailbox": "reported" })).await;
        let claimed = world.ok("mail/claim", json!({ "mailboxes": ["reported"], "run": "lives" })).await;
        let token = &claimed["claims"][0]["claim"]["token"];
        world.ok("mail/fail", json!({ "token": token, "reason": "its lease was over", "retry": false })).await;
        world.ok("task/add", json!({ "board": "reported", "title": "one" })).await;
        let claimed = world.ok("task/claim", json!({ "task": "reported-1", "run": "lives" })).await;
        let token = &claimed["claim"]["token"];
        world.ok("task/fail", json!({ "token": token, "reason": "its lease was over", "retry": false })).await;
        let metrics = metrics_once(&world, r#"fence_events_total{kind="task.failed"} 2"#).await;
        for line in [
            r#"fence_events_total{kind="task.failed"} 2"#,
            r#"fence_events_total{kind="message.failed"} 2"#,
            r#"fence_events_total{kind="message.discarded"} 2"#,
            r#"fence_claims_expired_total{noun="message"} 4"#,
            r#"fence_claims_expired_total{noun="task"} 2"#,
            r#"fence_claims_expired_total{noun="lock"} 1"#,
        ] {
            assert!(metrics.lines().any(|other| other == line), "{line} is not in\n{metrics}");
        }
    }
}

/// The metrics, once they have this line: on PostgreSQL the log can be read only up to the oldest running transaction.
async fn metrics_once(world: &World, line: &str) -> String {
    let once = async {
        loop {
            let metrics = text(world.send(get("/metrics")).await).await;
            if metrics.lines().any(|other| other == line) {
                return metrics;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, once).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {line}"))
}

#[tokio::test]
async fn the_page_shows_every_op_and_loads_nothing_else() {
    let world = World::sqlite().await;
    let response = world.send(get("/docs")).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
    assert!(
        response.headers()["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'")
    );
    let page = text(response).await;
    for entry in op::registry() {
        assert!(page.contains(&format!("id=\"{}\"", entry.name.replace('/', "-"))), "{}", entry.name);
        assert!(
            page.contains(&format!("http://127.0.0.1:7373/v1/{}", entry.name)),
            "{} has no curl line",
            entry.name
        );
    }
    for loading in ["src=", "@import", "url(", "<link"] {
        assert!(!page.contains(loading), "it loads something by {loading}");
    }
}
