//! How soon a waiting claim gets a new task: from sending `add` to receiving the whole answer to the `claim`.

use crate::{
    load::{Client, with_client},
    server_process::{Served, ServerProcess},
    table::{Spans, Targets},
};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

const CLAIM: &str = r#"{"board":"wake","run":"waiter","ttl_ms":1800000,"wait_ms":60000}"#;
const ADD: &str = r#"{"board":"wake","title":"a task"}"#;
/// By then a claim that was sent has found nothing and waits.
const WAITING: Duration = Duration::from_millis(20);

/// Between two clients of one server, and between two servers on one database.
pub async fn measure(
    database: &str,
    what: &Served,
    rounds: usize,
    wanted: &'static str,
    targets: &mut Targets,
) {
    let (one, other) = (ServerProcess::start(what), ServerProcess::start(what));
    // On a finished board no claim waits, so one task stays claimed.
    with_client(&one.host, async |client: &mut Client| {
        client.done("/v1/task/add", ADD.into()).await;
        client.done("/v1/task/claim", CLAIM.replace("waiter", "keeper")).await;
    })
    .await;
    println!("\nHTTP, {database}: from `add` to a parked `claim`'s answer, p50 and p99 in ms");
    for (name, from, wanted) in [("the same server", &one, wanted), ("another server", &other, "-")] {
        let woken = wake(&from.host, &one.host, rounds).await;
        let (p50, p99) = (woken.percentile(50), woken.percentile(99));
        println!("  added through {name:<18} {p50:>6.2} {p99:>6.2}");
        targets.push(format!("HTTP, {database}, wake-up through {name}, p50 in ms"), p50, wanted);
    }
}

async fn wake(adds_at: &str, waits_at: &str, rounds: usize) -> Spans {
    let (sender, mut received) = mpsc::channel(1);
    let host = waits_at.to_owned();
    let waiter = tokio::spawn(async move {
        let work = async |client: &mut Client| {
            // Until the adder has ended.
            while sender.send(None).await.is_ok() {
                if sender.send(Some(take(client).await)).await.is_err() {
                    break;
                }
            }
        };
        with_client(&host, work).await
    });
    let start = Instant::now();
    let add = async |client: &mut Client| {
        let mut took = Vec::new();
        while took.len() < rounds {
            assert!(received.recv().await.expect("the waiter lives").is_none());
            tokio::time::sleep(WAITING).await;
            let sent = Instant::now();
            client.done("/v1/task/add", ADD.into()).await;
            let at = received.recv().await.flatten().expect("the waiter was woken");
            took.push(at.saturating_duration_since(sent));
        }
        took
    };
    let (took, _) = with_client(adds_at, add).await;
    drop(received);
    waiter.abort();
    Spans::new(took, start.elapsed())
}

/// Waits for a task and completes it. Returns when the claim was answered.
async fn take(client: &mut Client) -> Instant {
    let answer = client.done("/v1/task/claim", CLAIM.into()).await;
    let at = Instant::now();
    let token = serde_json::from_slice::<serde_json::Value>(&answer).expect("JSON");
    let token = token["claim"]["token"].as_str().expect("a token").to_owned();
    client.done("/v1/task/done", format!(r#"{{"token":"{token}"}}"#)).await;
    at
}
