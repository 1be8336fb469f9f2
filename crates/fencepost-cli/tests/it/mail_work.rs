//! `fence mail work` with real processes, real signals, and a server that goes away.

use crate::{
    on_both,
    running::{Running, members, read, until},
    sealed::{Sealed, Serving, lasting_address, without_times},
};
use rustix::process::Signal;
use std::fs;

/// A script that writes its process id when it has begun, and waits for a file.
const WAITS: &str =
    "echo $$ > begun.new; mv begun.new begun; until [ -e go ]; do sleep 0.02; done; echo done";

/// The same, but the script and its children ignore TERM.
const STUBBORN: &str =
    "trap '' TERM; (trap '' TERM; exec sleep 1000) & echo $$ > begun.new; mv begun.new begun
while :; do sleep 1000; done";

fn begun(sealed: &Sealed) -> i32 {
    let file = sealed.path().join("begun");
    until("a command has begun", || file.exists());
    read(&file).trim().parse().expect("a number")
}

fn push(sealed: &Sealed, mailbox: &str, payloads: &[&str]) {
    for payload in payloads {
        sealed.ok(&["mail", "push", mailbox, payload]);
    }
}

/// How many messages of a mailbox are ready, processing, failed and processed.
fn counts(sealed: &Sealed, mailbox: &str) -> [i64; 4] {
    let stats: serde_json::Value =
        serde_json::from_str(&sealed.ok(&["--json", "mail", "stats", mailbox])).expect("JSON");
    ["ready", "processing", "failed", "processed"]
        .map(|name| stats["mailboxes"][0][name].as_i64().expect("a number"))
}

/// Replaces the name of the worker's run, which differs each time.
fn plain(text: &str) -> String {
    let mut words = without_times(text);
    while let Some(at) = words.find("mail-").filter(|at| words[*at..].len() >= 37) {
        words.replace_range(at..at + 37, "WORKER");
    }
    words
}

on_both! {
    /// The input of a command, and the meaning of its exit code.
    fn a_command_for_each_message(sealed: Sealed) {
        sealed.ok(&["init"]);
        // A backoff that is longer than this test.
        sealed.ok(&["mail", "configure", "box", "--backoff", "10m"]);
        sealed.ok(&["mail", "push", "box", "{\"a\":\n 1}", "--type", "tool_use"]);
        push(&sealed, "box", &["a text\nof two lines", "fail", "never", "nothing", "itself", "odd"]);
        sealed.script("cmd", r#"
            input=$(cat)
            echo "$FENCE_CLAIM $FENCE_MESSAGE $FENCE_MAILBOX ${FENCE_MESSAGE_TYPE-none} $FENCE_ATTEMPT ${#FENCE_RUN}" >&2
            case "$input" in
                fail) echo "what it says is not stored"; exit 3;;
                never) exit 65;;
                nothing) exit 0;;
                itself) fence mail done --output own > /dev/null;;
                odd) printf '\377';;
                *) printf '%s' "$input";;
            esac"#);
        let said = sealed.sh("FENCE_MESSAGE_TYPE=old fence mail work box --drain -- ./cmd");
        assert_eq!(said.code, 0, "{said:?}");
        insta::assert_snapshot!("mail_work", format!("{}\n{}", without_times(&said.out), said.err));
        let outputs = |id: &str| {
            let shown: serde_json::Value = serde_json::from_str(&sealed.ok(&["--json", "mail", "show", id])).expect("JSON");
            shown["message"]["outputs"].to_string()
        };
        assert_eq!(["1", "2", "5", "6"].map(outputs), ["[{\"a\":1}]", "[\"a text\\nof two lines\"]", "null", "[\"own\"]"]);
        sealed.readable();
        let shown = plain(&sealed.ok(&["mail", "show", "4"]));
        assert!(shown.contains("last failure: its command exited with 65\n"), "{shown}");
        assert!(shown.contains("failed   message/4@1  WORKER  reason: its command exited with 65"), "{shown}");
        assert!(shown.ends_with("hint: fence mail redrive 4 tries it again, with all its attempts"), "{shown}");
        // The run is over, and the report is JSON.
        assert!(sealed.ok(&["runs"]).contains("no runs"), "{}", sealed.ok(&["runs"]));
        sealed.ok(&["mail", "redrive", "4"]);
        let said = sealed.fence(&["--json", "mail", "work", "box", "--once", "--no-retry", "--", "false"]);
        assert!(said.out.starts_with("{\"message\":{\"id\":4,") && said.out.contains("\"status\":\"failed\""), "{said:?}");
        // A command that cannot be run fails no message.
        push(&sealed, "box", &["x", "y"]);
        let said = sealed.fence(&["mail", "work", "box", "--", "no-such-program"]);
        assert_eq!((said.code, said.err.as_str(), counts(&sealed, "box")[..2].to_vec()), (127, "error: `no-such-program`: not found", vec![2, 0]));
        assert!(sealed.ok(&["mail", "list", "box", "--status", "pending"]).contains("  0/3"));
        // An output that is too long to store.
        let said = sealed.fence(&["mail", "work", "box", "--max", "1", "--no-retry", "--", "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"]);
        assert!(said.out.contains("its command printed more than 1048576 bytes"), "{said:?}");
        let said = sealed.fence(&["mail", "work", "box", "--drain", "--", "sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x"]);
        assert!(said.out.contains("processed"), "{said:?}");
        let said = sealed.fence(&["mail", "work", "box", "--drain", "--", "true"]);
        assert_eq!((said.code, said.out.as_str()), (0, ""), "nothing is ready");
    }

    /// A batch is completed or fails together, and each message has its line of the output.
    fn batches(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["mail", "configure", "box", "--max-attempts", "2", "--backoff", "0s"]);
        push(&sealed, "box", &["{\"n\":\n1}", "two", "3"]);
        sealed.script("cmd", r#"
            echo "${FENCE_CLAIM-no claim}" >&2
            while IFS= read -r line; do grep -o '"payload":.*' <<< "$line"; done"#);
        let said = sealed.sh("FENCE_CLAIM=task/a-1@1 fence mail work box --batch 2 --max 3 -- ./cmd");
        assert_eq!((said.code, said.err.as_str()), (0, "no claim\nno claim"), "{said:?}");
        let shown: Vec<String> = (1..=3).map(|id| sealed.ok(&["mail", "show", &id.to_string()])).collect();
        assert!(shown[0].replace(": 1", ":1").contains("output: \"payload\":{\"n\":1}}}"), "{}", shown[0]);
        assert!(shown[1].contains("output: \"payload\":\"two\"}}"), "{}", shown[1]);
        assert!(shown[2].contains("output: \"payload\":\"3\"}}"), "{}", shown[2]);
        // With a line too few, fence does not guess. An exit code fails the whole batch.
        push(&sealed, "box", &["4", "5", "6"]);
        let said = sealed.fence(&["mail", "work", "box", "--batch", "3", "--once", "--", "head", "-2"]);
        assert_eq!(said.out.matches("its command printed 2 lines for 3 messages").count(), 3, "{said:?}");
        let said = sealed.fence(&["mail", "work", "box", "--batch", "3", "--once", "--", "false"]);
        assert_eq!(said.out.matches("failed").count(), 3, "{said:?}");
        assert_eq!(counts(&sealed, "box"), [0, 0, 3, 3]);
    }

    /// Three commands that wait for each other end only if they run at the same time.
    fn commands_overlap_up_to_the_concurrency(sealed: Sealed) {
        sealed.ok(&["init"]);
        push(&sealed, "box", &["1", "2", "3"]);
        let meet = "touch in.$FENCE_MESSAGE
            for i in $(seq 3000); do [ $(ls in.* | wc -l) = 3 ] && exit 0; sleep 0.02; done; exit 1";
        let said = sealed.fence(&["mail", "work", "box", "--concurrency", "3", "--drain", "--", "sh", "-c", meet]);
        assert_eq!((said.code, counts(&sealed, "box")), (0, [0, 0, 0, 3]), "{said:?}");
        push(&sealed, "box", &["4", "5", "6"]);
        let alone = "mkdir lock && sleep 0.1 && rmdir lock";
        let said = sealed.fence(&["mail", "work", "box", "--max", "3", "--", "sh", "-c", alone]);
        assert_eq!((said.code, counts(&sealed, "box")), (0, [0, 0, 0, 6]), "{said:?}");
    }

    /// After the first signal it finishes running commands, claims no more, and holds nothing afterwards.
    fn the_first_signal_drains(sealed: Sealed) {
        sealed.ok(&["init"]);
        push(&sealed, "box", &["1", "2", "3"]);
        let worker = Running::fence(&sealed, &["mail", "work", "box", "--", "sh", "-c", WAITS]);
        begun(&sealed);
        worker.send(Signal::TERM);
        until("it says so", || worker.err().contains("finishing running commands"));
        assert_eq!(counts(&sealed, "box"), [2, 1, 0, 0], "it goes on");
        fs::write(sealed.path().join("go"), "").expect("written");
        let said = worker.end();
        assert_eq!((said.code, counts(&sealed, "box")), (0, [2, 0, 0, 1]), "{said:?}");
        // A worker that waits for messages stops at once.
        sealed.ok(&["mail", "pause", "box"]);
        let worker = Running::fence(&sealed, &["mail", "work", "box", "--", "true"]);
        until("it listens", || worker.listens());
        worker.send(Signal::INT);
        let said = worker.end();
        assert_eq!((said.code, said.err.as_str()), (0, "finishing running commands; another signal ends them"), "{said:?}");
    }

    /// The second signal also ends a stubborn command. Its message goes back without a counted attempt, also on the last attempt and
    /// with --no-retry.
    fn the_second_signal_ends_the_commands(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["mail", "configure", "box", "--max-attempts", "1"]);
        sealed.ok(&["mail", "configure", "pay", "--replay", "hold"]);
        for (mailbox, more, then) in [
            ("box", &[][..], "1  pending  box  0/1"),
            ("box", &["--no-retry", "--batch", "2"], "1  pending  box  0/1"),
            // Nobody knows how far it came, and this mailbox holds such messages for a person.
            ("pay", &[], "2  held  pay  1/3  its worker was told to end"),
        ] {
            if more.is_empty() {
                push(&sealed, mailbox, &["1"]);
            }
            let _ = fs::remove_file(sealed.path().join("begun"));
            let words = [&["mail", "work", mailbox, "--grace", "300ms"], more, &["--", "sh", "-c", STUBBORN]].concat();
            let worker = Running::fence(&sealed, &words);
            let leader = begun(&sealed);
            for n in 1..=2 {
                worker.send(Signal::TERM);
                if n == 1 {
                    until("it says so", || worker.err().contains("finishing running commands"));
                }
            }
            let said = worker.end();
            assert_eq!((said.code, members(leader)), (143, vec![]), "{said:?}");
            let listed = sealed.ok(&["mail", "list", mailbox]);
            assert!(listed.starts_with(then), "{listed}");
            assert!(sealed.ok(&["runs"]).contains("no runs"));
        }
    }

    /// A service manager signals all processes of a service. A command that ends by the signal is no failed attempt.
    fn a_signal_for_worker_and_command(sealed: Sealed) {
        sealed.ok(&["init"]);
        push(&sealed, "box", &["1"]);
        let worker = Running::fence(&sealed, &["mail", "work", "box", "--", "sh", "-c", WAITS]);
        let leader = begun(&sealed);
        worker.send(Signal::TERM);
        until("it says so", || worker.err().contains("finishing running commands"));
        let leader = rustix::process::Pid::from_raw(leader).expect("a process");
        rustix::process::kill_process(leader, Signal::TERM).expect("a signal");
        let said = worker.end();
        assert_eq!(said.code, 0, "{said:?}");
        let listed = sealed.ok(&["mail", "list", "box"]);
        assert!(listed.starts_with("1  pending  box  0/3"), "{listed}");
    }

    without a server:

    /// A message that kills its workers fails after its attempts, and blocks nobody.
    fn a_poison_message_ends_in_failed(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["mail", "configure", "box", "--max-attempts", "2"]);
        push(&sealed, "box", &["poison", "1", "2", "3"]);
        sealed.script("cmd", "read -r what; if [ \"$what\" = poison ]; then kill -9 $PPID; exit 1; fi; echo ok");
        // Long enough that no worker loses its claim before it is killed, also where a commit takes seconds.
        let words = ["mail", "work", "box", "--ttl", "6s", "--grace", "100ms", "--drain", "--", "./cmd"];
        // Each attempt takes as long as a lease; the others need not wait for it.
        let mut killed = 0;
        until("the poison is given up", || {
            killed += usize::from(sealed.fence(&words).code == -1);
            counts(&sealed, "box")[2..] == [1, 3]
        });
        let listed = sealed.ok(&["mail", "list", "--status", "failed"]);
        assert!(listed.starts_with("1  failed  box  2/2  2 attempts were made and lost; the last by run `mail-"), "{listed}");
        // A worker that could not renew for six seconds lost its attempt before it was killed.
        assert!((1..=2).contains(&killed), "{killed}");
        assert_eq!(counts(&sealed, "box"), [0, 0, 1, 3]);
        // A person redrives it, and it is tried again.
        assert_eq!(sealed.ok(&["mail", "redrive", "1"]), "1 message pending again");
    }

    at once:

    /// A lost claim ends the command. The rest of its batch goes back, and the worker goes on.
    fn a_lost_claim_ends_its_command(sealed: Sealed) {
        sealed.ok(&["init"]);
        push(&sealed, "box", &["1", "2"]);
        sealed.ok(&["mail", "configure", "box", "--backoff", "10m"]);
        let ways: [&[&str]; 2] = [&["unclaim", "message/1"], &["mail", "reset", "box"]];
        for (way, batch) in ways.iter().zip([&[][..], &["--batch", "2"]]) {
            let _ = fs::remove_file(sealed.path().join("begun"));
            // It blocks the first time, and is quick after that.
            let script = format!("if [ -e begun ]; then cat; exit 0; fi; {STUBBORN}");
            let words = [&["mail", "work", "box", "--grace", "300ms", "--max", "2"], batch, &["--", "sh", "-c", &script]].concat();
            let worker = Running::fence(&sealed, &words);
            let leader = begun(&sealed);
            sealed.ok(way);
            until("the command is gone", || members(leader).is_empty());
            until("the worker says so", || worker.err().contains("the work of its command is not accepted"));
            if batch.is_empty() {
                assert_eq!(worker.end().code, 0);
                assert_eq!(counts(&sealed, "box")[1..], [0, 0, 1], "the other was processed");
                sealed.ok(&["mail", "push", "box", "3"]);
            } else {
                assert_eq!(worker.end().code, 0);
                assert_eq!(counts(&sealed, "box"), [2, 0, 0, 1]);
            }
        }
        // One lost claim of a batch is enough. The other message was interrupted, and waits for its retry.
        let _ = fs::remove_file(sealed.path().join("begun"));
        let worker = Running::fence(&sealed, &["mail", "work", "box", "--batch", "2", "--once", "--grace", "300ms", "--", "sh", "-c", STUBBORN]);
        let leader = begun(&sealed);
        sealed.ok(&["unclaim", "message/3"]);
        let said = worker.end();
        assert_eq!((said.code, members(leader), counts(&sealed, "box")), (0, vec![], [1, 0, 0, 1]), "{said:?}");
        assert!(said.err.contains("claim `message/3@2` was taken away by an operator"), "{said:?}");
    }

    /// A command that takes too long is ended, and its attempt counts. The replay policy of the mailbox decides on the message.
    fn a_command_has_a_timeout(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["mail", "configure", "box", "--backoff", "10m"]);
        sealed.ok(&["mail", "configure", "pay", "--replay", "hold"]);
        for (mailbox, then) in [("box", "delayed"), ("pay", "held")] {
            push(&sealed, mailbox, &["slow", "quick"]);
            let script = "cat > got; if grep -q slow got; then sleep 60; fi";
            let words = ["mail", "work", mailbox, "--once", "--timeout", "700ms", "--grace", "1s", "--", "sh", "-c", script];
            sealed.ok(&words);
            sealed.ok(&["mail", "work", mailbox, "--drain", "--", "sh", "-c", script]);
            let listed = sealed.ok(&["mail", "list", mailbox]);
            let lines: Vec<&str> = listed.lines().collect();
            assert!(lines[0].contains(then) && lines[0].contains("1/3"), "{listed}");
            assert!(lines[0].contains("its command took longer than 700ms"), "{listed}");
            assert!(lines[1].contains("processed"), "the next is not held up: {listed}");
        }
    }
}

/// A worker survives the restart of its server with a warning, and reports its results after it.
#[test]
fn a_worker_survives_the_restart_of_its_server() {
    let world = Sealed::sqlite();
    world.ok(&["init"]);
    push(&world, "box", &["1", "2"]);
    let address = lasting_address();
    let mut server = Serving::start(&world, &["--listen", &address]);
    let there = world.over(&server.url);
    let worker = Running::fence(
        &there,
        &["mail", "work", "box", "--max", "2", "--ttl", "10m", "--", "sh", "-c", WAITS],
    );
    begun(&there);
    server.kill();
    fs::write(there.path().join("go"), "").expect("written");
    // By itself the client tries for 15 s to reach a server that it knows, and says nothing meanwhile.
    until("it says that it tries again", || worker.err().contains("; trying again in "));
    server = Serving::start(&world, &["--listen", &address]);
    let said = worker.end();
    assert_eq!((said.code, counts(&world, "box")), (0, [0, 0, 0, 2]), "{said:?}");
    drop(server);
}
