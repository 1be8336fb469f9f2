//! `fence once` with real processes and real signals, and the outbox that it empties.

use crate::{
    on_both,
    running::{Running, ask, leader, members, read, until},
    sealed::{Finished, Sealed, finished},
};
use fencepost::{event, once};
use rustix::process::Signal;
use serde_json::Value;
use std::{fs, path::Path, process::Stdio};

/// A command whose effect is a line in `effects`. If there is a file `hang`, it then waits for ever.
const SEND: &str = "echo sent >> effects
    if [ -e hang ]; then echo $$ > leader; exec sleep 1000; fi
    echo done; echo slow >&2";

fn effects(sealed: &Sealed) -> usize {
    read(&sealed.path().join("effects")).lines().count()
}

/// The words of a `fence once` with these flags.
fn words<'w>(key: &'w str, flags: &[&'w str]) -> Vec<&'w str> {
    [&["once", key], flags, &["--", "bash", "-c", SEND]].concat()
}

fn send(sealed: &Sealed, key: &str, flags: &[&str]) -> Finished {
    sealed.fence(&words(key, flags))
}

fn record(sealed: &Sealed, key: &str) -> Value {
    serde_json::from_str(&sealed.ok(&["once", key, "--json"])).expect("JSON")
}

fn status(sealed: &Sealed, key: &str) -> String {
    record(sealed, key)["effect"]["status"].as_str().expect("a status").to_owned()
}

#[track_caller]
fn is_in_doubt(said: &Finished) {
    assert_eq!((said.code, said.out.as_str()), (4, ""), "{said:?}");
    for part in
        [" is in doubt: run `once-", "--happened or --not-happened", "--check CMD", "--retry-in-doubt"]
    {
        assert!(said.err.contains(part), "{part}: {said:?}");
    }
}

/// Kills a fence after the effect of its command, and lets its lease end.
fn doubt(sealed: &Sealed, key: &str) {
    let before = effects(sealed);
    fs::write(sealed.path().join("hang"), "").expect("written");
    let fence = Running::fence(sealed, &words(key, &[]));
    let leader = leader(sealed);
    fence.send(Signal::KILL);
    until("the command is gone", || members(leader).is_empty());
    drop(fence.end());
    let held = send(sealed, key, &[]);
    assert_eq!(held.code, 4, "{held:?}");
    assert!(held.err.contains(" is being run by run `once-"), "not before its lease is over: {held:?}");
    sealed.sql("update run set expires_at = opened_at where ended_at is null");
    for file in ["hang", "leader"] {
        fs::remove_file(sealed.path().join(file)).expect("removed");
    }
    assert_eq!(effects(sealed), before + 1);
}

#[test]
fn a_result_is_kept_as_it_was() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    fs::write(sealed.path().join("plain"), "no program").expect("written");
    // The command, its exit code, and the status that it leads to.
    let cases: [(&[&str], i32, &str); 6] = [
        (&["true"], 0, "succeeded"),
        (&["sh", "-c", "echo out; echo err >&2; exit 7"], 7, "failed"),
        (&["sh", "-c", "exit 255"], 255, "failed"),
        (&["sh", "-c", "echo out; kill -KILL $$"], 137, "in_doubt"),
        (&["no-such-program"], 127, "unused"),
        (&["./plain"], 126, "unused"),
    ];
    for (n, (command, code, becomes)) in cases.into_iter().enumerate() {
        let key = format!("k{n}");
        let words = [&["once", &key, "--"], command].concat();
        let first = sealed.fence(&words);
        assert_eq!(first.code, code, "{command:?}: {first:?}");
        assert_eq!(status(&sealed, &key), becomes, "{command:?}");
        let again = sealed.fence(&words);
        match becomes {
            "in_doubt" => is_in_doubt(&again),
            _ => assert_eq!(
                (again.code, again.out, again.err),
                (first.code, first.out, first.err),
                "{command:?}"
            ),
        }
    }
    // What was never started may be replaced by another command, what ran may not.
    assert_eq!(sealed.fence(&["once", "k4", "--", "true"]).code, 0);
    let other = sealed.fence(&["once", "k4", "--", "false"]);
    assert_eq!((other.code, other.out.as_str()), (1, ""));
    assert_eq!(
        other.err,
        "error: effect `k4` belongs to another command: `true`\nhint: give another effect a key of its own"
    );
    for wrong in [
        &["once"][..],
        &["once", "k", "--wait"],
        &["once", "k", "--retry-failed"],
        &["once", "k", "--happened", "--", "true"],
        &["once", "k", "--happened", "--not-happened"],
        &["once", "k", "--list"],
        &["once", "k", "--retry-in-doubt", "--check", "true", "--", "true"],
    ] {
        assert_eq!(sealed.fence(wrong).code, 2, "{wrong:?}");
    }
    assert_eq!(sealed.fence(&["once", "nothing"]).code, 1);
}

#[test]
fn large_and_binary_output_is_passed_on_whole_and_kept_up_to_a_limit() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let run = |key: &str, script: &str| {
        let words = ["once", key, "--", "bash", "-c", script];
        sealed.command("fence").args(words).stdin(Stdio::null()).output().expect("fence")
    };
    let binary = r"printf '\000\377\376 not text\n'; printf '\200' >&2";
    let (first, again) = (run("binary", binary), run("binary", binary));
    assert_eq!(first.stdout, b"\0\xff\xfe not text\n");
    assert_eq!((&again.stdout, &again.stderr), (&first.stdout, &first.stderr));

    // More than a pipe holds, on both streams.
    let large = "head -c 3000000 /dev/zero | tr '\\0' x; head -c 2000000 /dev/zero | tr '\\0' y >&2; exit 5";
    let first = run("large", large);
    assert_eq!((first.stdout.len(), first.stderr.len()), (3_000_000, 2_000_000));
    let again = run("large", large);
    assert_eq!((again.status.code(), again.stdout.len()), (Some(5), 64 * 1024));
    let (kept, warned) = again.stderr.split_at(64 * 1024);
    assert!(kept.iter().all(|&byte| byte == b'y'));
    assert_eq!(warned, b"warning: only the first 64 KiB of a stream are kept\n");
    let record = record(&sealed, "large");
    assert_eq!(
        (&record["effect"]["stdout"]["cut"], &record["effect"]["exit_code"]),
        (&true.into(), &5.into())
    );

    // Nobody reads: the command goes on, because its effect counts.
    let said =
        sealed.sh("fence once unread -- sh -c 'echo a; sleep 0.1; echo b; echo c > end' | true; cat end");
    assert_eq!((said.code, said.out.as_str()), (0, "c"), "{said:?}");
    assert_eq!(status(&sealed, "unread"), "succeeded");
    // A reader that never reads does not stop the claim from being renewed, nor its command from ending.
    let held = sealed.sh("mkfifo full; sleep 1000 < full & reader=$!; exec 3> full
         fence once stalled -- sh -c 'head -c 200000 /dev/zero; echo > end' >&3 & fence=$!
         for i in {1..3000}; do fence once stalled --json 2>&1 | grep -q succeeded && break; sleep 0.1; done
         kill -TERM $fence; wait $fence; echo $?; kill $reader");
    assert_eq!((held.code, held.out.as_str()), (0, "0"), "{held:?}");
}

#[test]
fn the_command_has_the_key_its_input_and_the_variables_of_the_caller() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    sealed.ok(&["add", "a task", "--board", "auth"]);
    sealed.ok(&["claim", "auth-1"]);
    let script = r#"cat; echo "$FENCE_CLAIM $FENCE_RUN $FENCE_ONCE $FENCE_ONCE_KEY""#;
    let guarded = format!(
        "echo input | FENCE_RUN=me fence guard task/auth-1@1 -- fence once mail/1 -- sh -c '{script}'"
    );
    let said = sealed.sh(&guarded);
    assert_eq!(
        (said.code, said.out.as_str()),
        (0, "input\ntask/auth-1@1 me once/mail/1@1 mail/1"),
        "{said:?}"
    );

    // A caller that lost its own claim begins nothing.
    let under =
        |claim: &str, key: &str| sealed.sh(&format!("FENCE_CLAIM={claim} fence once {key} -- touch started"));
    sealed.ok(&["unclaim", "task/auth-1"]);
    let lost = under("task/auth-1@1", "mail/2");
    assert_eq!(lost.code, 5, "{lost:?}");
    assert!(lost.err.contains("claim `task/auth-1@1` is over"), "{lost:?}");
    assert!(!sealed.path().join("started").exists());
    sealed.ok(&["claim", "auth-1"]);
    assert_eq!(under("task/auth-1@2", "mail/2").code, 0);
    // One that finished its work itself lost nothing.
    sealed.ok(&["done", "task/auth-1@2"]);
    assert_eq!(under("task/auth-1@2", "mail/3").code, 0);
}

on_both! {
    fn sixteen_processes_run_it_once(sealed: Sealed) {
        sealed.ok(&["init"]);
        let script = "echo ran >> count; echo out; echo err >&2; exit 3";
        let racers: Vec<_> = (0..16)
            .map(|_| Running::fence(&sealed, &["once", "mail", "--wait", "--", "bash", "-c", script]))
            .collect();
        for racer in racers {
            let said = racer.end();
            assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (3, "out", "err"));
        }
        assert_eq!(read(&sealed.path().join("count")), "ran\n");
        sealed.readable();
        let list = event::List { kind: Some("once.claimed".into()), ..event::List::default() };
        let claimed = ask(&sealed, async |fleet| fleet.call(list).await).expect("the log").events;
        assert_eq!(claimed.len(), 1);
    }

    /// Killed after the effect, before its record. Nobody knows, and nobody runs it again until somebody finds out.
    fn a_killed_caller_leaves_it_in_doubt(sealed: Sealed) {
        sealed.ok(&["init"]);
        let ways: [(&str, &[&str], usize); 3] =
            [("happened", &["--happened", "--note", "I saw it"], 0), ("not", &["--not-happened"], 1), ("retry", &[], 1)];
        for (key, way, runs) in ways {
            doubt(&sealed, key);
            for flags in [&[][..], &["--wait"], &["--retry-failed"]] {
                is_in_doubt(&send(&sealed, key, flags));
            }
            let listed = sealed.ok(&["once", "--list", "--status", "in_doubt"]);
            assert!(listed.contains(key), "{listed}");
            let before = effects(&sealed);
            let after = match way {
                [] => send(&sealed, key, &["--retry-in-doubt"]),
                way => {
                    sealed.ok(&[&["once", key], way].concat());
                    send(&sealed, key, &[])
                }
            };
            assert_eq!(after.code, 0, "{key}: {after:?}");
            assert_eq!(effects(&sealed), before + runs, "{key}");
            assert_eq!(status(&sealed, key), "succeeded", "{key}");
            assert_eq!(send(&sealed, key, &["--retry-in-doubt"]).code, 0);
            assert_eq!(effects(&sealed), before + runs, "{key}: now it has a result");
        }
        let shown = sealed.ok(&["once", "happened"]);
        assert!(shown.contains("somebody found that it happened\nnote: I saw it"), "{shown}");
        let refused = sealed.fence(&["once", "happened", "--not-happened"]);
        assert_eq!(refused.code, 5, "{refused:?}");
    }

    fn a_check_finds_out_whether_it_happened(sealed: Sealed) {
        sealed.ok(&["init"]);
        let check = |code: u8| format!("echo $FENCE_ONCE_KEY >> checks; echo found; echo why >&2; exit {code}");
        // Nobody asks while there is no doubt.
        assert_eq!(send(&sealed, "plain", &["--check", &check(7)]).code, 0);
        assert!(!sealed.path().join("checks").exists());

        doubt(&sealed, "mail");
        let before = effects(&sealed);
        for _ in 0..2 {
            let unknown = send(&sealed, "mail", &["--check", &check(7)]);
            assert_eq!((unknown.code, unknown.out.as_str()), (4, ""), "{unknown:?}");
            assert!(unknown.err.starts_with("why\nerror: effect `mail` is still in doubt: its check exited with 7"), "{unknown:?}");
        }
        is_in_doubt(&send(&sealed, "mail", &[]));
        let found = send(&sealed, "mail", &["--check", &check(0)]);
        assert_eq!((found.code, found.out.as_str(), found.err.as_str()), (0, "found", "why"));
        let later = send(&sealed, "mail", &[]);
        assert_eq!((later.code, later.out.as_str(), later.err.as_str()), (0, "found", "why"));
        assert_eq!(record(&sealed, "mail")["effect"]["source"], "check");
        assert_eq!(effects(&sealed), before, "it was not run again");

        doubt(&sealed, "again");
        let before = effects(&sealed);
        let sent = send(&sealed, "again", &["--check", &check(1)]);
        assert_eq!((sent.code, sent.out.as_str(), sent.err.as_str()), (0, "done", "slow"));
        assert_eq!(effects(&sealed), before + 1);
        assert_eq!(record(&sealed, "again")["effect"]["source"], "command");
        assert_eq!(read(&sealed.path().join("checks")), "mail\nmail\nmail\nagain\n");
        // A check that cannot be run says nothing.
        doubt(&sealed, "third");
        assert_eq!(send(&sealed, "third", &["--check", "no-such-program"]).code, 4);
        is_in_doubt(&send(&sealed, "third", &[]));
    }

    fn a_failure_is_kept_until_a_caller_retries_it(sealed: Sealed) {
        sealed.ok(&["init"]);
        let script = "echo ran >> count; echo out; test -e works";
        let run = |flags: &[&str]| sealed.fence(&[&["once", "mail"], flags, &["--", "sh", "-c", script]].concat());
        let ran = || read(&sealed.path().join("count")).lines().count();
        for _ in 0..2 {
            assert_eq!((run(&[]).code, ran()), (1, 1));
        }
        assert_eq!((run(&["--retry-failed"]).code, ran()), (1, 2));
        fs::write(sealed.path().join("works"), "").expect("written");
        assert_eq!((run(&[]).code, ran()), (1, 2), "the failure is still the result");
        assert_eq!((run(&["--retry-failed"]).code, ran()), (0, 3));
        assert_eq!((run(&["--retry-failed"]).code, ran()), (0, 3));
        sealed.ok(&["once", "mail", "--remove"]);
        assert_eq!((run(&[]).code, ran()), (0, 4));
    }

    /// Those who wait get the result; those who do not are refused.
    fn others_wait_while_it_runs(sealed: Sealed) {
        sealed.ok(&["init"]);
        fs::write(sealed.path().join("hang"), "").expect("written");
        let script = "echo $$ > leader; while [ -e hang ]; do sleep 0.02; done; echo out; exit 6";
        let words = |flags: &[&'static str]| [&["once", "mail"], flags, &["--", "bash", "-c", script]].concat();
        let holder = Running::fence(&sealed, &words(&[]));
        leader(&sealed);
        let held = sealed.fence(&words(&[]));
        assert_eq!(held.code, 4, "{held:?}");
        assert!(held.err.contains("fence once mail --wait -- … waits for its result"), "{held:?}");
        assert_eq!(sealed.fence(&words(&["--wait=200ms"])).code, 4);
        let waiters = [&["--wait"][..], &["--wait=10m"]].map(|wait| Running::fence(&sealed, &words(wait)));
        let interrupted = Running::fence(&sealed, &words(&["--wait"]));
        until("they wait", || waiters.iter().chain([&interrupted]).all(Running::listens));
        interrupted.send(Signal::INT);
        assert_eq!(interrupted.end().code, 130);
        assert_eq!(sealed.fence(&["once", "mail", "--remove"]).code, 4, "it is running");
        assert_eq!(sealed.fence(&["once", "mail", "--happened"]).code, 4, "it is running");
        fs::remove_file(sealed.path().join("hang")).expect("removed");
        for said in waiters.map(Running::end).into_iter().chain([holder.end()]) {
            assert_eq!((said.code, said.out.as_str()), (6, "out"), "{said:?}");
        }
        let claims = sealed.ok(&["claims"]);
        assert_eq!(claims, "no claims");
    }

    /// An answer is queued once, sent once, and not sent again by a sender that is repeated.
    fn no_duplicate_answer_goes_out(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["agent", "join", "ann"]);
        sealed.ok(&["inbox", "send", "ann", "is it fixed?", "--source", "slack", "--channel", "C1", "--thread", "7.1"]);
        for _ in 0..2 {
            sealed.ok(&["inbox", "respond", "1", "it is", "--agent", "ann"]);
        }
        assert_eq!(sealed.fence(&["inbox", "respond", "1", "it is not", "--agent", "ann"]).code, 5);
        let script = r#"fence once "slack-$FENCE_MESSAGE" -- sh -c 'cat >> sent'; echo tried >> tries; test -e works"#;
        let work = |times| {
            for _ in 0..times {
                sealed.fence(&["mail", "work", "outbox/slack", "--drain", "--", "bash", "-c", script]);
                sealed.sql("update message set delayed_until = null");
            }
        };
        // The sender dies after it sent, and before its message is completed: the message comes back.
        work(2);
        fs::write(sealed.path().join("works"), "").expect("written");
        work(2);
        let sent = read(&sealed.path().join("sent"));
        let sent: Vec<Value> = sent.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert_eq!((&sent[0]["text"], &sent[0]["channel"], &sent[0]["thread"]), (&"it is".into(), &"C1".into(), &"7.1".into()));
        assert_eq!(read(&sealed.path().join("tries")).lines().count(), 3);
    }

    at once:
    /// A stopped fence cannot renew: its command is ended, the key is in doubt, and afterwards it cannot record a success.
    fn a_stopped_caller_leaves_it_in_doubt(sealed: Sealed) {
        sealed.ok(&["init"]);
        fs::write(sealed.path().join("hang"), "").expect("written");
        let fence = Running::fence(&sealed, &words("mail", &["--ttl", "15s", "--grace", "100ms"]));
        let leader = leader(&sealed);
        fence.send(Signal::STOP);
        until("the command is gone", || members(leader).is_empty());
        until("it is in doubt", || status(&sealed, "mail") == "in_doubt");
        is_in_doubt(&send(&sealed, "mail", &[]));
        fence.send(Signal::CONT);
        let said = fence.end();
        assert_eq!(said.code, 5, "{said:?}");
        assert!(said.err.contains("effect `mail` is in doubt now"), "{said:?}");
        is_in_doubt(&send(&sealed, "mail", &[]));
        assert_eq!(effects(&sealed), 1);
        // Its token is of no use any more.
        let finish = once::Finish::new("once/mail@1");
        let late = ask(&sealed, async |fleet| fleet.call(finish).await);
        assert_eq!(late.expect_err("a refusal").code(), fencepost::Code::LeaseExpired);
    }
}

/// Ctrl-C goes to the command, and nobody knows how far it came.
#[test]
fn a_signal_for_the_command_leaves_it_in_doubt() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    fs::write(sealed.path().join("hang"), "").expect("written");
    let fence = Running::fence(&sealed, &words("mail", &[]));
    let leader = leader(&sealed);
    until("it sleeps", || read(Path::new(&format!("/proc/{leader}/comm"))) == "sleep\n");
    fence.send(Signal::INT);
    let said = fence.end();
    assert_eq!(said.code, 130, "{said:?}");
    assert!(said.err.contains("warning: effect `mail` is in doubt: signal 2 ended its command"), "{said:?}");
    is_in_doubt(&send(&sealed, "mail", &["--retry-failed"]));
    // With --json the record is all that is printed.
    let json = finished(
        sealed
            .command("fence")
            .args(["once", "json", "--json", "--", "sh", "-c", "echo out; exit 2"])
            .output()
            .expect("fence"),
    );
    assert_eq!((json.code, json.err.as_str()), (2, ""));
    let first: Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!(
        (&first["effect"]["stdout"]["text"], &first["effect"]["exit_code"]),
        (&"out\n".into(), &2.into())
    );
    let again = sealed.fence(&["once", "json", "--json", "--", "sh", "-c", "echo out; exit 2"]);
    assert_eq!((again.code, serde_json::from_str::<Value>(&again.out).expect("JSON")), (2, first));
}
