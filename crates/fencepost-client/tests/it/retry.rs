//! Asking again, where that is safe and nowhere else.

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

async fn ask<O: Op>(script: &[Action], op: O) -> (fencepost::Result<O::Reply>, Vec<Received>) {
    let server = ScriptedServer::of(script).await;
    let fleet = Connection::open(&server.url).await.expect("it opens");
    let answer = fleet.call(op).await;
    (answer, server.received())
}

/// The id is the client's own, and the same each time: so the server knows that it was asked before.
#[tokio::test]
async fn what_makes_something_is_asked_again_under_the_same_id() {
    let script = [Action::HangUp, unavailable(), Action::HangUp, Action::Answer(200, added())];
    let (answer, asked) = ask(&script, task::Add::new("a", "t")).await;
    assert_eq!(answer.expect("added").task.id, "a-1");
    let ids: Vec<_> = asked.iter().map(|asked| asked.body["request"].as_str().expect("an id")).collect();
    assert_eq!(ids.len(), 4);
    assert!(ids[0].len() == 32 && ids.iter().all(|id| *id == ids[0]), "{ids:?}");

    let own = task::Add { request: Some("mine".into()), ..task::Add::new("a", "t") };
    let (_, asked) = ask(&[Action::HangUp, Action::Answer(200, added())], own).await;
    assert!(asked.len() == 2 && asked.iter().all(|asked| asked.body["request"] == "mine"), "{asked:?}");
}

#[tokio::test]
async fn two_things_are_not_taken_for_one() {
    let server = ScriptedServer::of([Action::Answer(200, added())]).await;
    let fleet = Connection::open(&server.url).await.expect("it opens");
    fleet.call(task::Add::new("a", "t")).await.expect("added");
    fleet.call_by_name("task/add", r#"{"board": "a", "title": "t"}"#).await.expect("added");
    let asked = server.received();
    assert!(asked[1].body["request"].is_string() && asked[0].body["request"] != asked[1].body["request"]);
}

#[tokio::test]
async fn completions_and_reads_are_asked_again() {
    let (answer, asked) =
        ask(&[Action::HangUp, Action::Answer(200, added())], task::Done::new("task/a-1@1")).await;
    assert_eq!((answer.is_ok(), asked.len()), (true, 2));
    assert_eq!(asked[0].body, asked[1].body);
    let list = Action::Answer(200, json!({ "tasks": [], "more": false }).to_string());
    let (answer, asked) = ask(&[Action::HangUp, list], task::List::default()).await;
    assert_eq!((answer.is_ok(), asked.len()), (true, 2));
}

/// A run of this name that came meanwhile would be ended, too.
#[tokio::test]
async fn what_would_be_done_twice_is_not_asked_again() {
    for then in [Action::HangUp, unavailable()] {
        let (answer, asked) = ask(&[then], run::End { run: "a".into(), ..run::End::default() }).await;
        assert_eq!(asked.len(), 1);
        let error = answer.expect_err("no answer");
        assert!(matches!(error.code(), Code::OutcomeUnknown | Code::Unavailable), "{error:?}");
    }
    let unclaim = claim::Unclaim { resource: "lock/a".into(), reason: None };
    let (answer, asked) = ask(&[Action::HangUp], unclaim).await;
    assert_eq!((asked.len(), answer.expect_err("no answer").code()), (1, Code::OutcomeUnknown));
}

#[tokio::test]
async fn nobody_can_say_whether_it_was_done() {
    let (answer, asked) = ask(&[Action::HangUp], task::Add::new("a", "t")).await;
    let error = answer.expect_err("no answer");
    assert_eq!(error.code(), Code::OutcomeUnknown);
    assert_eq!(error.field("request"), Some(&asked[0].body["request"]), "to ask again by hand");
    // How often is counted where time is an argument: `pauses_grow_and_end`.
    assert!(asked.len() >= 2, "{}", asked.len());

    let (answer, _) = ask(&[Action::HangUp], task::List::default()).await;
    assert_eq!(answer.expect_err("no answer").code(), Code::Unavailable, "nothing can have been done");
}

#[tokio::test]
async fn nobody_is_there() {
    // Port 9 (discard) is nobody's here; a request that never left changes nothing.
    let fleet = Connection::open("http://127.0.0.1:9").await.expect("it opens");
    let error = fleet.call(task::Add::new("a", "t")).await.expect_err("nobody");
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message().starts_with("the fleet at http://127.0.0.1:9 does not answer: "), "{error:?}");
}

/// Also what would be done twice: it has not been done once.
#[tokio::test]
async fn the_next_server_is_asked() {
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
async fn a_wait_does_not_begin_anew() {
    let page = Action::Answer(200, json!({ "events": [], "position": "0.0", "more": false }).to_string());
    let list = event::List { wait_ms: Some(Millis(60_000)), ..event::List::default() };
    // A server that has answered is tried for as long as the wait, however slow this machine is.
    let (answer, asked) = ask(&[unavailable(), Action::HangUp, Action::HangUp, page], list).await;
    answer.expect("a page");
    let waits: Vec<_> = asked.iter().map(|asked| asked.body["wait_ms"].as_u64().expect("a wait")).collect();
    assert!(waits.len() == 4 && waits.is_sorted_by(|earlier, later| earlier > later), "{waits:?}");
    assert_eq!(asked[0].body.as_object().map(|fields| fields.contains_key("request")), Some(false));
}
