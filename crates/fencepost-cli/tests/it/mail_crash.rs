//! kill -9 of `fence mail work` at random moments: every message has exactly one output.

use crate::{
    on_both,
    running::{counts, until},
    sealed::Sealed,
};
use fencepost::{Fleet, mail};
use serde_json::Value;
use std::{process::Stdio, time::Duration};

/// New messages for every kill, so that the next worker has something to do.
const EACH: i64 = 4;

on_both! {
    without a server:

    fn kills(sealed: Sealed) {
        kill_at_random(&sealed, 20);
    }

    #[ignore = "long: make soak"]
    fn soak_fifty_kills(sealed: Sealed) {
        kill_at_random(&sealed, 50);
    }
}

/// Kills a worker this many times or more: until a kill has hit a message that was begun.
fn kill_at_random(sealed: &Sealed, kills: i64) {
    sealed.ok(&["init"]);
    // Enough attempts for all kills.
    sealed.ok(&["mail", "configure", "box", "--max-attempts", "1000", "--backoff", "0s"]);
    sealed.script("work", "echo $FENCE_MESSAGE >> begun; cat; echo $FENCE_MESSAGE >> ended");
    let words = ["mail", "work", "box", "--ttl", "1s", "--concurrency", "2", "--", "./work"];
    let begun = sealed.path().join("begun");
    let lines = || std::fs::read_to_string(&begun).map_or(0, |text| text.lines().count());
    let processed = || {
        let stats: Value =
            serde_json::from_str(&sealed.ok(&["--json", "mail", "stats", "box"])).expect("JSON");
        stats["mailboxes"][0]["processed"].as_i64().expect("a number")
    };
    let mut round = 0;
    while round < kills || lines() as i64 <= processed() {
        let rows: String = (1..=EACH).map(|n| format!("{{\"n\": {}}}\n", round * EACH + n)).collect();
        std::fs::write(sealed.path().join("rows"), rows).expect("written");
        sealed.ok(&["mail", "push", "box", "--lines", "rows"]);
        // After it has begun this many, at any moment.
        let enough = lines() + fastrand::usize(0..4);
        let mut command = sealed.command("fence");
        let mut worker =
            command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("fence");
        until("something is begun", || lines() >= enough);
        wait(Duration::from_micros(fastrand::u64(0..60_000)));
        worker.kill().expect("killed");
        worker.wait().expect("gone");
        round += 1;
    }
    let messages = round * EACH;
    // The messages of dead workers go back when their leases expire, within a second.
    let worker = sealed.command("fence").args(words).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut worker = worker.expect("fence");
    until("all are processed", || processed() == messages);
    worker.kill().expect("killed");
    worker.wait().expect("gone");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let again = lines() as i64 - messages;
    assert!(again > 0, "no kill hit anything: the test did too little to mean anything");
    sealed.readable();
    runtime.block_on(account(sealed, messages));
}

async fn account(sealed: &Sealed, messages: i64) {
    let fleet = Fleet::open(&sealed.url()).await.expect("it opens after every crash");
    for id in 1..=messages {
        let message = fleet.call(mail::Show { message: id }).await.expect("it is there").message;
        let outputs: Vec<&str> = message.outputs.iter().map(|output| output.text()).collect();
        assert_eq!(outputs, [format!("{{\"n\": {id}}}")], "{message:?}");
    }
    let counts = counts(&fleet).await;
    let of =
        |kind: &str| counts.iter().filter(|((is, _), _)| is == kind).map(|(_, n)| *n).collect::<Vec<_>>();
    assert_eq!(of("message.completed"), vec![1; messages as usize], "one accepted completion each");
    assert!(!of("message.lapsed").is_empty(), "nothing came back by its lease");
}

#[expect(clippy::disallowed_methods, reason = "the moment of the kill is what the test is about")]
fn wait(span: Duration) {
    std::thread::sleep(span);
}
