//! `lock` and `guard` with real processes and real signals.

use crate::{
    on_both,
    running::{Running, STUBBORN, ask, beats, leader, lease_end, members, over_by, read, until},
    sealed::Sealed,
};
use fencepost::{Time, claim, event};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::Stdio,
};

#[test]
fn exit_codes_are_passed_through() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    fs::write(sealed.path().join("plain"), "no program").expect("written");
    let cases: [(&[&str], i32, &str); 6] = [
        (&["true"], 0, ""),
        (&["sh", "-c", "exit 7"], 7, ""),
        (&["sh", "-c", "kill -TERM $$"], 143, ""),
        (&["sh", "-c", "kill -KILL $$"], 137, ""),
        (&["no-such-program"], 127, "error: `no-such-program`: not found"),
        (&["./plain"], 126, "error: `./plain`: cannot be executed"),
    ];
    sealed.ok(&["add", "a task", "--board", "auth"]);
    sealed.ok(&["claim", "auth-1"]);
    for (words, code, err) in cases {
        for verb in [&["lock", "deploy", "--"][..], &["guard", "task/auth-1@1", "--"]] {
            let said = sealed.fence(&[verb, words].concat());
            assert_eq!((said.code, said.err.as_str()), (code, err), "{verb:?} {words:?}");
        }
    }
    assert_eq!(sealed.ok(&["guard", "task/auth-1@1", "--grace", "1s", "--", "echo", "hello"]), "hello");
    assert!(
        sealed.ok(&["guard", "task/auth-1@1"]).starts_with("ok: held by run me"),
        "without a command it answers"
    );
    let said = sealed.fence(&["lock", "deploy"]);
    assert_eq!(said.code, 2, "a lock is for a command: {said:?}");
    for said in [
        sealed.fence(&["lock", "deploy", "--grace=-1h", "--", "true"]),
        sealed.fence(&["lock", "deploy", "--wait=-1s", "--", "true"]),
        sealed.fence(&["guard", "task/auth-1@1", "--grace", "5s ago", "--", "true"]),
    ] {
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.err.contains("not a duration such as 30s, 30m or 2h"), "{said:?}");
    }
}

#[test]
fn signals_are_passed_on() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let script = "for s in INT HUP QUIT USR1 USR2; do trap \"echo $s >> got\" $s; done
        trap 'echo TERM >> got; exit 9' TERM
        echo $$ > leader
        while :; do sleep 0.02; done";
    let fence = Running::fence(&sealed, &["lock", "deploy", "--", "bash", "-c", script]);
    leader(&sealed);
    let got = sealed.path().join("got");
    let all = [
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::TERM, "TERM"),
    ];
    for (signal, name) in all {
        fence.send(signal);
        until(name, || read(&got).lines().last() == Some(name));
    }
    assert_eq!(fence.end().code, 9);
    assert_eq!(read(&got), "INT\nHUP\nQUIT\nUSR1\nUSR2\nTERM\n", "each of them once");
}

#[test]
fn ignored_signals_stay_ignored() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let said =
        sealed.sh("trap '' HUP; fence lock deploy -- sh -c 'kill -HUP $PPID; kill -HUP $$; echo survived'");
    assert_eq!((said.code, said.out.as_str()), (0, "survived"), "{said:?}");
}

on_both! {
    /// A command under a lock still acts for the run and the claim of its caller.
    fn a_lock_keeps_the_variables_of_its_caller(sealed: Sealed) {
        sealed.ok(&["init"]);
        for _ in 1..=3 {
            sealed.ok(&["add", "a task", "--board", "auth"]);
        }
        // With the run's only claim, taken outside or inside of the lock.
        sealed.ok(&["claim", "auth-1"]);
        sealed.ok(&["lock", "push", "--", "fence", "done"]);
        assert_eq!(sealed.ok(&["lock", "push", "--", "fence", "claim", "auth-2", "-q"]), "task/auth-2@1");
        assert!(sealed.ok(&["guard", "task/auth-2@1"]).starts_with("ok: held by run me "), "it outlives the lock");
        sealed.ok(&["done", "task/auth-2@1"]);
        // With the claim of the guard around it.
        sealed.ok(&["claim", "auth-3"]);
        let script = "echo $FENCE_CLAIM $FENCE_RUN $FENCE_LOCK; fence done >/dev/null";
        let said = sealed.ok(&["guard", "--", "fence", "lock", "push", "--", "sh", "-c", script]);
        assert_eq!(said, "task/auth-3@1 me lock/push@3");
        assert!(sealed.ok(&["show", "auth-3"]).contains("status: completed"));
    }

    fn sixteen_processes_take_turns(sealed: Sealed) {
        take_turns(&sealed, 2);
    }

    #[ignore = "long: make soak"]
    fn soak_sixteen_processes_take_turns(sealed: Sealed) {
        take_turns(&sealed, 6);
    }

    /// Waiting ends by its limit, by the release of the lock, or by Ctrl-C.
    fn waiting_for_a_lock(sealed: Sealed) {
        sealed.ok(&["init"]);
        let holder = Running::fence(&sealed, &["lock", "deploy", "--", "bash", "-c", STUBBORN]);
        leader(&sealed);
        let said = sealed.fence(&["lock", "deploy", "--wait=300ms", "--", "touch", "started"]);
        assert_eq!(said.code, 4, "{said:?}");
        assert!(said.err.starts_with("error: lock `deploy` is held by run `lock-"), "{said:?}");

        let waiters = [&["--wait"][..], &["--wait=1m"]].map(|wait| {
            Running::fence(&sealed, &[&["lock", "deploy"], wait, &["--", "sh", "-c", "echo $FENCE_LOCK"]].concat())
        });
        let interrupted = Running::fence(&sealed, &["lock", "deploy", "--wait", "--", "touch", "started"]);
        until("it waits", || interrupted.listens());
        interrupted.send(Signal::INT);
        assert_eq!(interrupted.end().code, 130);

        holder.send(Signal::KILL);
        drop(holder.end());
        sealed.ok(&["unclaim", "lock/deploy"]);
        let mut tokens = waiters.map(|waiter| waiter.end().out).to_vec();
        // A server may have claimed it for the client that hung up; it releases that.
        sealed.readable();
        let list = event::List { kind: Some("lock.undelivered".into()), ..event::List::default() };
        let undelivered = ask(&sealed, async |fleet| fleet.call(list).await).expect("the log").events;
        tokens.extend(undelivered.iter().map(|event| format!("lock/deploy@{}", event.fence.unwrap_or(0))));
        tokens.sort();
        assert_eq!(tokens, ["lock/deploy@2", "lock/deploy@3", "lock/deploy@4"][..tokens.len()]);
        assert!(tokens.len() - undelivered.len() == 2 && undelivered.len() <= 1, "{undelivered:?}");
        assert!(!sealed.path().join("started").exists());
    }

    /// The error cannot be written, but the lock is released.
    fn a_full_disk_keeps_no_lock(sealed: Sealed) {
        sealed.ok(&["init"]);
        let said = sealed.sh("fence lock deploy -- no-such-program 2>/dev/full");
        assert_eq!(said.code, 127, "{said:?}");
        sealed.ok(&["lock", "deploy", "--", "true"]);
    }

    fn without_a_living_claim_nothing_starts(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "a task", "--board", "auth"]);
        sealed.ok(&["claim", "auth-1"]);
        sealed.ok(&["release", "task/auth-1@1"]);
        for (token, reason) in [
            ("task/auth-1@1", "claim `task/auth-1@1` is over"),
            ("task/auth-1@2", "`task/auth-1@2` was never issued"),
            ("lock/deploy@1", "`lock/deploy@1` was never issued"),
        ] {
            let said = sealed.fence(&["guard", token, "--", "touch", "started"]);
            assert_eq!(said.code, 5, "{said:?}");
            assert!(said.err.starts_with(&format!("error: {reason}")), "{said:?}");
        }
        let held = sealed.sh("fence lock deploy -- fence lock deploy -- touch started");
        assert_eq!(held.code, 4, "{held:?}");
        assert!(held.err.contains("lock `deploy` is held by run `lock-"), "{held:?}");
        assert!(held.err.contains("hint: fence lock deploy --wait"), "{held:?}");
        assert!(!sealed.path().join("started").exists());
    }

    /// The command exited with 0, but its claim was over.
    fn a_claim_that_was_lost_at_the_end_is_noticed(sealed: Sealed) {
        sealed.ok(&["init"]);
        let said = sealed.sh("fence lock deploy -- sh -c 'fence unclaim lock/deploy >/dev/null; exit 0'");
        assert_eq!(said.code, 5, "{said:?}");
        assert!(said.err.contains("was taken away by an operator"), "{said:?}");
    }

    /// Processes that the command leaves behind are gone before the lock is free.
    fn no_process_outlives_the_lock(sealed: Sealed) {
        sealed.ok(&["init"]);
        let script = "(trap '' TERM; exec sleep 1000) & echo $$ > leader; exit 6";
        let said = Running::fence(&sealed, &["lock", "deploy", "--grace", "300ms", "--", "bash", "-c", script]).end();
        assert_eq!((said.code, members(leader(&sealed))), (6, vec![]), "{said:?}");
        sealed.ok(&["lock", "deploy", "--", "true"]);
    }

    at once:

    /// Unclaimed, cancelled, ended: the command and its stubborn children are gone, and the error has the reason.
    fn a_lost_claim_ends_the_whole_group(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "a task", "--board", "auth"]);
        let losses: [(&[&str], &[&str], &str); 4] = [
            (&["lock", "deploy"], &["unclaim", "lock/deploy"], "claim `lock/deploy@1` was taken away by an operator"),
            (&["guard"], &["unclaim", "task/auth-1"], "claim `task/auth-1@1` was taken away by an operator"),
            (&["guard"], &["end", "me"], "claim `task/auth-1@2` is over: its lease ended or it was given back"),
            (&["guard"], &["cancel", "auth-1"], "`task/auth-1` was cancelled"),
        ];
        for (verb, loss, reason) in losses {
            for file in ["leader", "beats"] {
                let _ = fs::remove_file(sealed.path().join(file));
            }
            if verb == ["guard"] {
                sealed.ok(&["claim", "auth-1"]);
            }
            let words = [verb, &["--grace", "500ms", "--", "bash", "-c", STUBBORN]].concat();
            let fence = Running::start(sealed.command("fence").env("FENCE_RUN", "me"), &words);
            let leader = leader(&sealed);
            until("its children beat", || beats(&sealed).is_some());
            assert!(members(leader).len() >= 4, "{:?}", members(leader));
            sealed.ok(loss);
            let said = fence.end();
            assert_eq!(members(leader), Vec::<String>::new(), "after {loss:?}");
            assert_eq!(said.code, 5, "{said:?}");
            assert!(said.err.starts_with(&format!("error: {reason}")), "{said:?}");
        }
        // TERM comes before KILL, and a command that handles TERM has time to end.
        let _ = fs::remove_file(sealed.path().join("leader"));
        let listens = "trap 'echo told > told; exit 0' TERM
            echo $$ > leader
            while :; do sleep 0.02; done";
        let fence = Running::fence(&sealed, &["lock", "deploy", "--grace", "1m", "--", "bash", "-c", listens]);
        leader(&sealed);
        sealed.ok(&["unclaim", "lock/deploy"]);
        let said = fence.end();
        assert_eq!((said.code, read(&sealed.path().join("told")).as_str()), (5, "told\n"), "{said:?}");
    }

    /// `fence` within the command acts under its claim. A claim that the command finishes is not lost.
    fn a_command_can_finish_its_own_claim(sealed: Sealed) {
        sealed.ok(&["init"]);
        for n in 1..=3 {
            sealed.ok(&["add", "a task", "--board", "auth"]);
            sealed.ok(&["claim", &format!("auth-{n}")]);
        }
        // Longer than it takes to notice that the claim is over.
        let linger = "sleep 1.5; echo still here; exit 3";
        let script = format!("cd / && echo $FENCE_CLAIM $FENCE_RUN && fence done --output x >/dev/null && {linger}");
        let said = sealed.fence(&["guard", "task/auth-1@1", "--", "sh", "-c", &script]);
        assert_eq!((said.code, said.out.as_str()), (3, "task/auth-1@1 me\nstill here"), "{said:?}");
        assert!(sealed.ok(&["show", "auth-1"]).contains("status: completed"));
        let script = format!("fence fail --reason no >/dev/null && {linger}");
        let said = sealed.fence(&["guard", "task/auth-2@1", "--", "sh", "-c", &script]);
        assert_eq!((said.code, said.out.as_str()), (3, "still here"), "{said:?}");
        // Nor is it lost at the end of the command.
        let said = sealed.fence(&["guard", "task/auth-3@1", "--", "sh", "-c", "fence done >/dev/null; exit 4"]);
        assert_eq!(said.code, 4, "{said:?}");
    }

    /// Others can take a claim that was given back: the command is ended, and does not succeed.
    fn a_released_claim_is_lost(sealed: Sealed) {
        sealed.ok(&["init"]);
        for _ in 1..=3 {
            sealed.ok(&["add", "a task", "--board", "auth"]);
        }
        sealed.ok(&["add", "a task", "--board", "auth", "--offer", "kim"]);
        for n in 1..=4 {
            sealed.ok(&["claim", &format!("auth-{n}"), "--agent", "kim"]);
        }
        let ways: [(&[&str], &[&str]); 4] = [
            (&["lock", "deploy"], &["release", "lock/deploy@1"]),
            (&["guard", "task/auth-1@1"], &["release", "task/auth-1@1"]),
            (&["guard", "task/auth-2@1"], &["fail", "task/auth-2@1", "--retry", "--reason", "no"]),
            (&["guard", "task/auth-4@1"], &["reject", "auth-4", "--agent", "kim", "--reason", "no"]),
        ];
        for (verb, way) in ways {
            let _ = fs::remove_file(sealed.path().join("leader"));
            let script = "echo $$ > leader; exec sleep 1000";
            let fence = Running::fence(&sealed, &[verb, &["--", "sh", "-c", script]].concat());
            let leader = leader(&sealed);
            sealed.ok(way);
            let said = fence.end();
            assert_eq!((said.code, members(leader)), (5, vec![]), "after {way:?}: {said:?}");
            assert!(said.err.contains("is over: its lease ended or it was given back"), "{said:?}");
        }
        // A claim that the command itself gives back is not finished, either.
        sealed.ok(&["claim", "auth-1", "--agent", "kim"]);
        let itself: [(&[&str], &str); 4] = [
            (&["lock", "deploy"], "fence release lock/deploy@2; exit 0"),
            (&["lock", "deploy"], "fence release lock/deploy@3; exec sleep 1000"),
            (&["guard", "task/auth-1@2"], "fence release"),
            // The task failed, and fence noticed; then somebody retries the task.
            (&["guard", "task/auth-3@1"], "fence fail --reason no; sleep 1.5; fence retry auth-3; exec sleep 1000"),
        ];
        for (verb, script) in itself {
            let said = sealed.fence(&[verb, &["--", "sh", "-c", script]].concat());
            assert_eq!(said.code, 5, "{script}: {said:?}");
        }
    }

    /// The claim is renewed while the command runs, and released at once when the command ends.
    fn a_lock_is_renewed_and_released(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.script("twice", r#"
            ends() { fence --json guard $FENCE_LOCK | grep -o '"expires_at":"[^"]*"'; }
            for renewal in 1 2; do
                was=$(ends)
                for ((i = 0; i < 600; i++)); do [[ $(ends) == "$was" ]] || break; sleep 0.1; done
                ((i < 600)) || exit 1
            done
            fence guard $FENCE_LOCK; fence call run/list"#);
        // It is renewed after a third of the lease. A short grace leaves time for retries.
        let said = sealed.sh("fence lock deploy --ttl 24s --grace 100ms -- ./twice");
        assert_eq!(said.code, 0, "{said:?}");
        assert!(said.out.starts_with("ok: held by run lock-"), "{said:?}");
        assert!(said.out.contains("\"ttl_ms\": 24000"), "{said:?}");
        assert_eq!(sealed.fence(&["guard", "lock/deploy@1"]).out, "lease_expired");
        sealed.ok(&["lock", "deploy", "--", "true"]);
    }

    fn a_maximum_ends_the_command_in_time(sealed: Sealed) {
        sealed.ok(&["init"]);
        // Time enough that the fleet answers a renewal between the notice of the maximum and its end, also on a slow machine.
        let words = ["lock", "deploy", "--max", "20s", "--grace", "5s", "--", "bash", "-c", STUBBORN];
        let fence = Running::fence(&sealed, &words);
        let leader = leader(&sealed);
        let held = ask(&sealed, async |fleet| fleet.call(claim::Guard::new("lock/deploy@1")).await);
        let until = held.expect("an answer").claim.expect("it is held").expires_at;
        let said = fence.end();
        assert_eq!((said.code, members(leader)), (5, vec![]), "{said:?}");
        assert!(said.err.starts_with("error: the maximum time of claim `lock/deploy@1` is over"), "{said:?}");
        over_by(&sealed, until);
    }

    /// KILL ends fence and so its command; the lock is free when its lease expires.
    fn a_killed_fence_kills_its_command(sealed: Sealed) {
        sealed.ok(&["init"]);
        let fence = Running::fence(&sealed, &["lock", "deploy", "--ttl", "20s", "--", "bash", "-c", STUBBORN]);
        let leader = leader(&sealed);
        until("its children beat", || beats(&sealed).is_some());
        fence.send(Signal::KILL);
        until("the command is gone", || members(leader).is_empty());
        assert_eq!(sealed.fence(&["lock", "deploy", "--", "true"]).code, 4, "not before its lease is over");
        drop(fence.end());
        until("it is free", || sealed.fence(&["lock", "deploy", "--", "true"]).code == 0);
        over_by(&sealed, lease_end(&sealed));
    }

    /// A stopped fence cannot renew, but its watchdog runs.
    fn a_stopped_fence_does_not_let_its_command_outlive_the_lease(sealed: Sealed) {
        sealed.ok(&["init"]);
        let words = ["lock", "deploy", "--ttl", "6s", "--grace", "100ms", "--", "bash", "-c", STUBBORN];
        let fence = Running::fence(&sealed, &words);
        let leader = leader(&sealed);
        until("its children beat", || beats(&sealed).is_some());
        fence.send(Signal::STOP);
        until("the command is gone", || members(leader).is_empty());
        // The watchdog's margin is 0.3 s, and a busy machine may not let it run for longer than that.
        over_by(&sealed, Time(lease_end(&sealed).0 + 2000));
        fence.send(Signal::CONT);
        let said = fence.end();
        // 137 if a renewal was on its way when it was stopped, and succeeded.
        assert!([5, 137].contains(&said.code), "{said:?}");
    }
}

/// Sixteen processes add one to the same number, several times each. Nothing is lost, and never are two of them inside.
fn take_turns(sealed: &Sealed, turns: usize) {
    sealed.ok(&["init"]);
    let path = sealed.path();
    fs::write(path.join("number"), "0").expect("written");
    let add = "mkdir inside || echo two are inside >> errors
        n=$(cat number); sleep 0.01; echo $((n + 1)) > number
        rmdir inside";
    let work =
        format!("for i in {{1..{turns}}}; do fence lock number --wait -- bash -c \"$ADD\" 2>> errors; done");
    let shells: Vec<_> =
        (0..16).map(|_| Running::start(sealed.command("bash").env("ADD", add), &["-c", &work])).collect();
    for shell in shells {
        assert_eq!(shell.end().code, 0);
    }
    let (number, errors) = (read(&path.join("number")), read(&path.join("errors")));
    let claims = 16 * turns;
    // A machine that is too slow to release a lock in ten seconds warns, and the lease ends.
    assert!(number.trim() == claims.to_string() && !errors.contains("two are inside"), "{number}: {errors}");
    let next = claim::Guard::new(format!("lock/number@{}", claims + 1));
    let claimed = ask(sealed, async |fleet| fleet.call(next).await);
    assert_eq!(
        claimed.expect("an answer").reason,
        claim::Verdict::NotFound,
        "{claims} claims, and not one more"
    );
}

/// A supervisor can die, or be stopped, after it started its command and before it could say which group that is: the command has a
/// mark, by which the watchdog finds it. A TERM for every `fence` does not end the watchdog.
#[test]
fn a_command_whose_supervisor_says_no_more_is_killed() {
    let sealed = Sealed::sqlite();
    for (kill_at, dies) in [("null", true), ("0", false)] {
        let mut watchdog =
            sealed.command("fence").arg("watchdog").stdin(Stdio::piped()).spawn().expect("it starts");
        let id = Pid::from_child(&watchdog);
        let status = format!("/proc/{}/status", id.as_raw_nonzero());
        until("it is deaf to signals", || read(Path::new(&status)).contains("SigBlk:\tffff"));
        kill_process(id, Signal::TERM).expect("it is there");
        let command = |mark: &str| {
            let started = sealed.command("sleep").arg("1000").env("FENCE_WATCHED", mark).spawn();
            started.expect("it starts")
        };
        let [mut ours, mut other] = ["me", "another"].map(command);
        let mut pipe = watchdog.stdin.take().expect("its pipe");
        writeln!(pipe, r#"{{"mark":"me","group":null,"run":null,"kill_at":{kill_at}}}"#).expect("written");
        let pipe = (!dies).then_some(pipe);
        until("the command is killed", || ours.try_wait().expect("its status").is_some());
        assert!(watchdog.wait().expect("it ends").success(), "TERM did not end it");
        drop(pipe);
        assert_eq!(other.try_wait().expect("its status"), None, "it was not killed");
        other.kill().expect("killed");
        other.wait().expect("it ends");
    }
}

/// An upgrade while `fence` waits: it starts the watchdog of its own version.
#[test]
fn a_binary_that_was_replaced_still_supervises() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let holder = Running::fence(&sealed, &["lock", "deploy", "--", "bash", "-c", STUBBORN]);
    leader(&sealed);
    let fence = sealed.path().join("old-fence");
    // A file that this process has open for writing could be inherited by a child of another test, and be busy.
    let copied = sealed.command("cp").args([env!("CARGO_BIN_EXE_fence"), "old-fence"]).status();
    assert!(copied.expect("cp").success());
    let waiter = Running::program(
        &sealed,
        fence.to_str().expect("a name"),
        &["lock", "deploy", "--wait", "--", "echo", "at last"],
    );
    until("it waits", || waiter.listens());
    fs::remove_file(&fence).expect("it is there");
    holder.send(Signal::KILL);
    drop(holder.end());
    sealed.ok(&["unclaim", "lock/deploy"]);
    let said = waiter.end();
    assert_eq!((said.code, said.out.as_str()), (0, "at last"), "{said:?}");
}

/// On a terminal, the command gets the terminal: it can read, and gets Ctrl-C and Ctrl-Z.
#[test]
fn the_command_gets_the_terminal() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let command = "trap 'echo got INT' INT; echo ready; read a; echo got $a; read b; echo got $b; exit 8";
    fs::write(sealed.path().join("command.sh"), command).expect("written");
    // At once if all streams are the terminal, on demand in a pipeline; the shell gets it back afterwards.
    for line in ["fence lock deploy -- bash command.sh", "fence lock deploy -- bash command.sh | cat"] {
        let line = format!("set -o pipefail; {line}; code=$?; read c; echo $code $c");
        // Bounded, because a command that does not get the terminal waits for ever.
        let mut script = sealed.command("timeout");
        script
            .args(["300", "script", "-qe", "/dev/null", "-c", &format!("bash -c '{line}'")])
            .env("SHELL", "/bin/bash");
        let mut script =
            script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script, of util-linux");
        let mut keys = script.stdin.take().expect("a keyboard");
        let mut screen = BufReader::new(script.stdout.take().expect("a screen"));
        let mut seen = String::new();
        let mut see = |text: &str| {
            while !seen.lines().any(|line| line.trim_start_matches("^C").trim_start_matches("^Z") == text) {
                assert_ne!(screen.read_line(&mut seen).expect("a screen"), 0, "{text} in {seen:?}");
            }
        };
        see("ready");
        // In a pipeline it gets the terminal once it reads; before that, Ctrl-C goes to all.
        for (typed, shown) in
            [("one\n", "got one"), ("\x03", "got INT"), ("\x1atwo\n", "got two"), ("three\n", "8 three")]
        {
            keys.write_all(typed.as_bytes()).expect("typed");
            see(shown);
        }
        script.wait().expect("its end");
    }
}
