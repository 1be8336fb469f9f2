//! Requests and responses of a remote call.

use crate::scripted_server::{Action, ScriptedServer};
use fencepost::{Code, lock, run, task};
use fencepost_client::Connection;
use serde_json::json;

fn nothing() -> Action {
    Action::Answer(200, json!({ "tasks": [], "more": false }).to_string())
}

#[tokio::test]
async fn headers_name_the_caller_and_connections_are_reused() {
    let server = ScriptedServer::of([nothing()]).await;
    let fleet = Connection::open(&server.url).await.expect("it opens");
    for _ in 0..3 {
        fleet.call(task::List::default()).await.expect("a list");
    }
    let known = fleet.with_key("fence_secret").expect("a key").as_agent("kim").in_run("r-7");
    assert!(!format!("{known:?}").contains("fence_secret"), "{known:?}");
    known.call(task::List::default()).await.expect("a list");
    let received = server.received();
    assert_eq!(received.iter().map(|request| request.connection).collect::<Vec<_>>(), [0; 4]);
    assert_eq!(received[0].path, "/v1/task/list");
    assert_eq!(received[0].header("content-type"), Some("application/json"));
    assert_eq!((received[0].header("authorization"), received[0].header("fence-agent")), (None, None));
    let headers = (received[3].header("authorization"), received[3].header("fence-agent"));
    assert_eq!(headers, (Some("Bearer fence_secret"), Some("kim")));
    assert_eq!((received[0].header("fence-run"), received[3].header("fence-run")), (None, Some("r-7")));
}

#[tokio::test]
async fn a_refusal_arrives_unchanged() {
    let refusal = json!({ "error": {
        "code": "already_claimed", "message": "held by run `a`", "hint": "fence ready", "holder": "a", "fence": 4,
    }});
    let server = ScriptedServer::of([Action::Answer(409, refusal.to_string())]).await;
    let fleet = Connection::open(&server.url).await.expect("it opens");
    let error = fleet.call(lock::Claim::new("deploy", "b")).await.expect_err("it is held");
    assert_eq!(error.to_json(), refusal);
    assert_eq!(server.received().len(), 1, "a refusal is an answer");
}

#[tokio::test]
async fn an_answer_of_another_program_is_an_error() {
    for (status, body) in [(502, "<html>Bad Gateway</html>"), (200, "<html>Welcome</html>"), (404, "")] {
        let server = ScriptedServer::of([Action::Answer(status, body.into())]).await;
        let fleet = Connection::open(&server.url).await.expect("it opens");
        let error = fleet.call(task::List::default()).await.expect_err("no answer");
        assert_eq!(error.code(), Code::Unavailable, "{error:?}");
        assert!(error.message().starts_with(&format!("{} answered", server.url)), "{error:?}");
        assert!(error.hint_text().is_some_and(|hint| hint.contains("fence serve")), "{error:?}");
        // A proxy's answer does not say whether the op was carried out.
        let error =
            fleet.call(run::End { run: "a".into(), ..run::End::default() }).await.expect_err("no answer");
        assert_eq!(error.code(), Code::OutcomeUnknown, "{error:?}");
    }
}

/// An older version stored JSON that this one cannot read.
#[tokio::test]
async fn the_claims_of_an_unreadable_reply_are_released() {
    let claim =
        |token: &str| format!(r#"{{"claim": {{"token": "{token}"}}, "message": {{"payload": 1e999}}}}"#);
    let claims = format!(r#"{{"claims": [{}, {}]}}"#, claim("message/1@1"), claim("message/2@1"));
    let released = json!({ "resource": "message/1", "status": "pending" }).to_string();
    let server = ScriptedServer::by(move |_, path| match path {
        "/v1/mail/claim" => Action::Answer(200, claims.clone()),
        _ => Action::Answer(200, released.clone()),
    })
    .await;
    let fleet = Connection::open(&server.url).await.expect("it opens");
    let request = json!({ "mailboxes": ["s"], "run": "a", "count": 2 });
    let error = fleet.call_by_name("mail/claim", &request.to_string()).await.expect_err("unreadable");
    assert!(error.message().contains("cannot be read"), "{error:?}");
    let received = server.received();
    let received: Vec<_> =
        received.iter().map(|request| (request.path.as_str(), request.body["token"].as_str())).collect();
    let release = |token| ("/v1/claim/release", Some(token));
    assert_eq!(received, [("/v1/mail/claim", None), release("message/1@1"), release("message/2@1")]);
}

#[tokio::test]
async fn an_invalid_request_is_not_sent() {
    let server = ScriptedServer::of([nothing()]).await;
    let fleet = Connection::open(&server.url).await.expect("it opens");
    for (name, request) in [("task/add", "{"), ("task/add", "[]"), ("task/list", r#"{"nonsense": 1}"#)] {
        let error = fleet.call_by_name(name, request).await.expect_err("it is invalid");
        assert_eq!(error.code(), Code::Invalid, "{request}: {error:?}");
    }
    let error = fleet.as_agent("a\nb").call(task::List::default()).await.expect_err("no name");
    assert_eq!((error.code(), error.field("field")), (Code::Invalid, Some(&"agent".into())));
    assert_eq!(server.received().len(), 0);
    fleet.call_by_name("task/list", "{}").await.expect("a list");
}
