//! Retries: only where repeating a request is safe.

use crate::scripted_server::{Action, Received, ScriptedServer};
use fencepost::{Code, Millis, Op, claim, event, run, task};
use fencepost_client::Connection;
use serde_json::json;

fn added() -> String {
    let at = "2026-01-01T00:00:00.000Z";
    let task = json!({
        "id": "a-1", "board": "a", "title": "t", "status": "unassigned", "priority": 50, "waiting_on": 0,
        "attempts": 0, "max_attempts": 3, "created_at": at, "updated_at": at,
    });
    json!({ "task": task }).to_string()
}

fn unavailable() -> Action {
    Action::Answer(503, json!({ "error": { "code": "unavailable", "message": "shutting down" } }).to_string())
}

async fn call<O: Op>(script: &[Action], op: O) -> (fencepost::Result<O::Reply>, Vec<Received>) {
    let server = ScriptedServer::of(script).await;
    let fleet = Connection::open(&server.url).await.expect("it opens");
    let answer = fleet.call(op).await;
    (answer, server.received())
}

/// The client makes up the id and repeats it, so that the server recognises the repeat.
#[tokio::test]
async fn an_op_that_creates_is_retried_under_the_same_id() {
    let script = [Action::HangUp, unavailable(), Action::HangUp, Action::Answer(200, added())];
    let (answer, received) = call(&script, task::Add::new("a", "t")).await;
    assert_eq!(answer.expect("added").task.id, "a-1");
    let ids: Vec<_> =
        received.iter().map(|request| request.body["request"].as_str().expect("an id")).collect();
    assert_eq!(ids.len(), 4);
    assert!(ids[0].len() == 32 && ids.iter().all(|id| *id == ids[0]), "{ids:?}");

    let own = task::Add { request: Some("mine".into()), ..task::Add::new("a", "t") };
    let (_, received) = call(&[Action::HangUp, Action::Answer(200, added())], own).await;
    assert!(
        received.len() == 2 && received.iter().all(|request| request.body["request"] == "mine"),
        "{received:?}"
    );
}

#[tokio::test]
async fn two_calls_have_two_ids() {
    let server = ScriptedServer::of([Action::Answer(200, added())]).await;
    let fleet = Connection::open(&server.url).await.expect("it opens");
    fleet.call(task::Add::new("a", "t")).await.expect("added");
    fleet.call_by_name("task/add", r#"{"board": "a", "title": "t"}"#).await.expect("added");
    let received = server.received();
    assert!(
        received[1].body["request"].is_string() && received[0].body["request"] != received[1].body["request"]
    );
}

#[tokio::test]
async fn completions_and_reads_are_retried() {
    let (answer, received) =
        call(&[Action::HangUp, Action::Answer(200, added())], task::Done::new("task/a-1@1")).await;
    assert_eq!((answer.is_ok(), received.len()), (true, 2));
    assert_eq!(received[0].body, received[1].body);
    let list = Action::Answer(200, json!({ "tasks": [], "more": false }).to_string());
    let (answer, received) = call(&[Action::HangUp, list], task::List::default()).await;
    assert_eq!((answer.is_ok(), received.len()), (true, 2));
}

/// A second `run/end` could end a run of this name that began meanwhile.
#[tokio::test]
async fn an_op_that_would_act_twice_is_not_retried() {
    for then in [Action::HangUp, unavailable()] {
        let (answer, received) = call(&[then], run::End { run: "a".into(), ..run::End::default() }).await;
        assert_eq!(received.len(), 1);
        let error = answer.expect_err("no answer");
        assert!(matches!(error.code(), Code::OutcomeUnknown | Code::Unavailable), "{error:?}");
    }
    let unclaim = claim::Unclaim { resource: "lock/a".into(), reason: None };
    let (answer, received) = call(&[Action::HangUp], unclaim).await;
    assert_eq!((received.len(), answer.expect_err("no answer").code()), (1, Code::OutcomeUnknown));
}

#[tokio::test]
async fn after_the_last_attempt_the_outcome_is_unknown() {
    let (answer, received) = call(&[Action::HangUp], task::Add::new("a", "t")).await;
    let error = answer.expect_err("no answer");
    assert_eq!(error.code(), Code::OutcomeUnknown);
    assert_eq!(error.field("request"), Some(&received[0].body["request"]), "for a retry by hand");
    // `pauses_grow_and_end` counts the attempts, with time as an argument.
    assert!(received.len() >= 2, "{}", received.len());

    let (answer, _) = call(&[Action::HangUp], task::List::default()).await;
    assert_eq!(answer.expect_err("no answer").code(), Code::Unavailable, "nothing can have been done");
}

#[tokio::test]
async fn no_server_is_there() {
    // Nothing listens on port 9 (discard). A request that never left changes nothing.
    let fleet = Connection::open("http://127.0.0.1:9").await.expect("it opens");
    let error = fleet.call(task::Add::new("a", "t")).await.expect_err("no server");
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message().starts_with("the fleet at http://127.0.0.1:9 does not answer: "), "{error:?}");
}

/// Even for an op that would act twice: no server got the request.
#[tokio::test]
async fn the_next_server_is_tried() {
    let ended = json!({ "error": { "code": "not_found", "message": "there is no run" } });
    let server = ScriptedServer::of([Action::Answer(404, ended.to_string())]).await;
    let fleet = Connection::open(&format!("http://127.0.0.1:9,{}", server.url)).await.expect("it opens");
    for calls in 1..=3 {
        let error =
            fleet.call(run::End { run: "a".into(), ..run::End::default() }).await.expect_err("no such run");
        assert_eq!((error.code(), server.received().len()), (Code::NotFound, calls));
    }
}

#[tokio::test]
async fn a_retry_waits_only_for_the_rest() {
    let page = Action::Answer(200, json!({ "events": [], "position": "0.0", "more": false }).to_string());
    let list = event::List { wait_ms: Some(Millis(60_000)), ..event::List::default() };
    // A server that answered before is retried for as long as the wait, however slow this machine is.
    let (answer, received) = call(&[unavailable(), Action::HangUp, Action::HangUp, page], list).await;
    answer.expect("a page");
    let waits: Vec<_> =
        received.iter().map(|request| request.body["wait_ms"].as_u64().expect("a wait")).collect();
    assert!(waits.len() == 4 && waits.is_sorted_by(|earlier, later| earlier > later), "{waits:?}");
    assert_eq!(received[0].body.as_object().map(|fields| fields.contains_key("request")), Some(false));
}
