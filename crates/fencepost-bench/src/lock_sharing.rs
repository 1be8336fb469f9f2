//! How two servers on one database share a lock: three clients of one server and one of the other claim it, hold it for a
//! while and release it.

use crate::{
    load::{Client, with_client},
    server_process::{Served, ServerProcess},
    table::Targets,
};
use std::time::{Duration, Instant};

pub async fn measure(database: &str, what: &Served, span: Duration, targets: &mut Targets) {
    let (one, other) = (ServerProcess::start(what), ServerProcess::start(what));
    println!("\nHTTP, {database}: a lock, three clients of one server and one of another: grants a second");
    for held_ms in [0, 50] {
        let clients = [&one, &one, &one, &other].map(|server| &server.host);
        let held = Duration::from_millis(held_ms);
        let [a, b, c, d] = std::array::from_fn(|client| take_turns(clients[client], client, held, span));
        let (a, b, c, theirs) = tokio::join!(a, b, c, d);
        let ours = a + b + c;
        let share = theirs / (ours + theirs) * 4.0;
        let rate = |grants: f64| grants / span.as_secs_f64();
        println!(
            "  held for {held_ms:>2} ms: {:>7.1} and {:>6.1}, the other server's client has {share:.2} of its fair share",
            rate(ours),
            rate(theirs)
        );
        targets.push(
            format!("HTTP, {database}, a lock held {held_ms} ms, the other server's fair share"),
            share,
            "-",
        );
    }
}

/// How often this client was granted the lock.
async fn take_turns(host: &str, client: usize, held: Duration, span: Duration) -> f64 {
    let claim = format!(r#"{{"name":"share","run":"client-{client}","wait_ms":1000}}"#);
    let start = Instant::now();
    let turns = async |client: &mut Client| {
        let mut granted = 0.0;
        while start.elapsed() < span {
            let answer = client.post("/v1/lock/claim", claim.clone()).await;
            if answer.status.is_success() {
                granted += 1.0;
                tokio::time::sleep(held).await;
                let claimed = serde_json::from_slice::<serde_json::Value>(&answer.body).expect("JSON");
                let token = claimed["claim"]["token"].as_str().expect("a token");
                client.done("/v1/claim/release", format!(r#"{{"token":"{token}"}}"#)).await;
            }
        }
        granted
    };
    with_client(host, turns).await.0
}
