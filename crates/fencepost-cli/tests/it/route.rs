//! Routes from the command line.

use crate::{on_both, sealed::without_times};

on_both! {
    fn routes_and_unmatched_messages(sealed: Sealed) {
        sealed.ok(&["init"]);
        let deliver = |delivery: &str, text: &str| {
            let request = serde_json::json!({
                "source": "slack", "event": "message", "channel": "C1", "sender": "U1", "delivery": delivery, "text": text,
            });
            sealed.ok(&["--json", "call", "route/deliver", &request.to_string()]);
        };
        let mut told = sealed.transcript("
            route
            route unmatched
            route again
            route add slack --channel C1 --text deploy --to ops
            route add github --repository acme/api --event issues.opened --user kim --bots --to triage
            route add slack --text deploy
            route add slack --text '' --to ops
        ");
        for (delivery, text) in [("Ev1", "deploy it"), ("Ev2", "hello\nthere"), ("Ev3", "is anybody there?"), ("Ev2", "hello")] {
            deliver(delivery, text);
        }
        told += &sealed.transcript("
            mail push hooks/unmatched junk
            route unmatched
            route unmatched --limit 1
            route again
            route again 2
            route again 1
            route add slack --text hello --to lead --before 1
            route list
            route again 2
            route again 2
            route add slack --to lead
            route again
            route unmatched
            route rm 1
            route remove 1
            route remove 9
            route list
            --json route again
            mail list inbox/lead
        ");
        insta::assert_snapshot!("route", without_times(&told));
    }
}
