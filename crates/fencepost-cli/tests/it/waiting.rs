//! Waiting from the command line: for a claim, for finished tasks, for events.

use crate::{
    on_both,
    sealed::{Finished, Sealed, eventually},
};
use std::{
    io::{BufRead, BufReader},
    process::Child,
};

fn finished(child: Child) -> Finished {
    crate::sealed::finished(child.wait_with_output().expect("its output"))
}

/// Starts a command, and returns when it waits: it has tried once, and watches the log.
pub fn waiting(sealed: &Sealed, words: &[&str]) -> Child {
    if let Some(url) = sealed.server() {
        let address = url.trim_start_matches("http://").to_owned();
        let before = crate::serve::waiting(&address);
        let child = sealed.spawn(words);
        eventually("it waits", || (crate::serve::waiting(&address) > before).then_some(()));
        return child;
    }
    let child = sealed.spawn(words);
    match sealed.url() {
        url if url.starts_with("postgres") => watches_postgres(&child, &url),
        // The writer and the watcher have the file open, and a reader if there is one.
        path => watches_file(
            &child,
            &path,
            if words.iter().any(|word| ["claim", "lock"].contains(word)) { 2 } else { 3 },
        ),
    }
    child
}

/// The open files of a process.
fn open_files(child: &Child) -> Vec<String> {
    let files = std::fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten().flatten();
    let open = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    open.map(|open| open.display().to_string()).collect()
}

fn watches_file(child: &Child, path: &str, times: usize) {
    let file = std::fs::canonicalize(path).expect("the fleet").display().to_string();
    eventually("it waits", || {
        let open = open_files(child).iter().filter(|open| **open == file).count();
        (open == times).then_some(())
    });
}

/// Returns when the process listens, on a connection that is named after the channel.
fn watches_postgres(child: &Child, url: &str) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let fleet = runtime.block_on(fencepost::Fleet::open(url)).expect("the fleet");
    eventually("it waits", || {
        ports(child).into_iter().find_map(|port| {
            let listening = fleet.transaction(move |tx| {
                let sql = "select 1 as yes from pg_stat_activity
                           where client_port = ?1 and application_name like 'fence\\_%' and query ilike 'listen%'";
                Box::pin(async move { tx.query(sql, fencepost::params![port]).await })
            });
            (!runtime.block_on(listening).expect("an answer").is_empty()).then_some(())
        })
    });
}

/// The ports from which a process is connected.
fn ports(child: &Child) -> Vec<i64> {
    let open = open_files(child);
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the connections");
    let ours = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, port) = fields[1].split_once(':')?;
        open.contains(&format!("socket:[{}]", fields[9]))
            .then(|| i64::from_str_radix(port, 16).expect("a port"))
    });
    ours.collect()
}

on_both! {
    fn a_claim_waits_for_a_task(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "held", "--board", "a"]);
        sealed.ok(&["--run", "other", "claim", "a-1"]);
        let any = waiting(&sealed, &["claim", "--board", "a", "--wait", "1m", "-q"]);
        let named = waiting(&sealed, &["--run", "third", "claim", "a-1", "--wait", "1m", "-q"]);
        sealed.ok(&["add", "fresh", "--board", "a"]);
        assert_eq!(finished(any).out, "task/a-2@1");
        sealed.ok(&["release", "task/a-1@1"]);
        assert_eq!(finished(named).out, "task/a-1@2");
        let nothing = sealed.fence(&["claim", "--board", "a", "--wait", "10ms"]);
        assert_eq!((nothing.code, nothing.out.as_str()), (3, ""), "{nothing:?}");
        sealed.ok(&["done", "task/a-2@1"]);
        sealed.ok(&["done", "task/a-1@2"]);
        let finished = sealed.fence(&["claim", "--board", "a", "--wait", "1h"]);
        assert_eq!(finished.code, 3, "what is finished is not waited for: {finished:?}");
    }

    fn wait_ends_with_the_tasks(sealed: Sealed) {
        sealed.ok(&["init"]);
        for title in ["one", "two", "three", "four"] {
            sealed.ok(&["add", title]);
        }
        sealed.ok(&["add", "alone", "--board", "other"]);
        let shown = sealed.transcript("
            wait
            wait main-1 --board main
            wait main-9
            wait --board nothing
            wait main-1 main-2 --timeout 10ms
            --json wait main-1 --timeout 10ms
            wait --board main --timeout 10ms
        ");
        insta::assert_snapshot!("wait", shown);
        let both = waiting(&sealed, &["wait", "main-1", "main-2"]);
        let any = waiting(&sealed, &["wait", "main-1", "main-2", "--any"]);
        let board = waiting(&sealed, &["wait", "--board", "other"]);
        for task in ["main-2", "main-1", "other-1"] {
            sealed.ok(&["claim", task]);
            sealed.ok(&["done"]);
        }
        let (both, any, board) = (finished(both), finished(any), finished(board));
        assert_eq!((both.code, both.out.lines().last()), (0, Some("2 completed, 0 failed, 0 cancelled, 0 open")));
        assert_eq!(any.code, 0, "{any:?}");
        assert_eq!((board.code, board.out.as_str()), (0, "1 completed, 0 failed, 0 cancelled, 0 open"));
        let lost = waiting(&sealed, &["wait", "main-3", "main-4"]);
        sealed.ok(&["cancel", "main-4"]);
        let lost = finished(lost);
        assert_eq!((lost.code, lost.out.lines().last()), (1, Some("0 completed, 0 failed, 1 cancelled, 1 open")));
    }

    fn events_are_read_and_followed(sealed: Sealed) {
        sealed.ok(&["init"]);
        let mut follower = waiting(&sealed, &["events", "--follow", "--json", "--kind", "task.completed"]);
        sealed.ok(&["add", "one"]);
        sealed.ok(&["add", "two"]);
        for task in ["main-2", "main-1"] {
            sealed.ok(&["claim", task]);
            sealed.ok(&["done"]);
        }
        let lines = BufReader::new(follower.stdout.take().expect("its output")).lines();
        let seen: Vec<String> = lines.take(2).map(|line| line.expect("a line")).collect();
        follower.kill().expect("to end it");
        follower.wait().expect("its end");
        assert!(seen[0].contains("\"resource\":\"task/main-2\"") && seen[1].contains("task/main-1"), "{seen:?}");

        // The follower has seen the last event, so all are readable. (On PostgreSQL the log is readable up to the oldest
        // transaction.)
        let shown = sealed.transcript("
            events --resource task/main-1
            events --kind task.completed --limit 1
            events --since start --kind task.added
            events --kind nothing
            events --since nonsense
        ");
        insta::assert_snapshot!("events", shown);
        let page = sealed.ok(&["--json", "events", "--since", "start", "--limit", "2"]);
        let page: serde_json::Value = serde_json::from_str(&page).expect("JSON");
        let position = page["position"].as_str().expect("a position");
        assert_eq!(page["more"], true);
        let rest = sealed.ok(&["events", "--since", position]);
        assert_eq!(rest.lines().count(), sealed.ok(&["events"]).lines().count() - 2);
    }

    /// Text has local times, headings for other days, titles and words. JSON stays as it is.
    fn events_are_described_for_people(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.transcript("
            add 'write the parser' --board auth
            add 'a title that is much longer than the column that there is for titles' --board auth
            --agent kim claim auth-1
            fail task/auth-1@1 --retry --reason 'the network is down'
            edit auth-2 --title 'short now' --tag rust
            mail push a/long/mailbox '{}'
            mail configure a/long/mailbox --ttl 5m
            cancel auth-2 --reason 'not needed'
        ");
        sealed.readable();
        // One event each quarter of an hour, from half past ten in the evening of a day in spring, in Berlin.
        sealed.sql("update event set at = 1714508999000 + 900000 * (id - (select min(id) from event))");
        let shown = |columns: Option<usize>, words: &str| {
            let script = match columns {
                Some(columns) => format!("script -qec 'stty cols {columns}; fence {words}' /dev/null < /dev/null"),
                None => format!("fence {words}"),
            };
            let said = sealed.command("bash").env("TZ", "CET-1CEST,M3.5.0,M10.5.0/3").args(["-c", &script]).output().expect("bash");
            crate::sealed::finished(said).out.replace('\r', "").replace('\x1b', "^")
        };
        let shown = [None, Some(120), Some(80), Some(60), Some(40)].map(|columns| shown(columns, "events --since start"));
        insta::assert_snapshot!("events_view", shown.join("\n\n"));
        let json = sealed.ok(&["--json", "events", "--since", "start"]);
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let events = json["events"].as_array().expect("events");
        assert_eq!(events[0]["at"], "2024-04-30T20:29:59.000Z");
        assert!(events.iter().all(|event| event.get("title").is_none()), "{json}");
    }

    fn events_are_shown_from_a_time_on(sealed: Sealed) {
        sealed.ok(&["init"]);
        for title in ["two days ago", "an hour and a half ago", "now"] {
            sealed.ok(&["add", title]);
        }
        sealed.readable();
        sealed.sql("update event set at = at - 172800000 where resource = 'task/main-1'");
        sealed.sql("update event set at = at - 5400000 where resource = 'task/main-2'");
        let since = |since: &str| {
            let page = sealed.ok(&["--json", "events", "--since", since]);
            let page: serde_json::Value = serde_json::from_str(&page).expect("JSON");
            page["events"].as_array().expect("events").clone()
        };
        let counts = ["start", "30d", "1d", "2h", "1h", "1970-01-01T00:00:00Z", "2999-01-01"].map(|when| since(when).len());
        assert_eq!(counts, [3, 3, 2, 2, 1, 3, 0]);
        let second = since("start")[1]["at"].as_str().expect("its time").to_owned();
        assert_eq!(since(&second).len(), 2, "a time that the log gave is one to begin at");
        let wrong = sealed.fence(&["events", "--since", "-1h"]);
        assert_eq!(wrong.code, 2, "{wrong:?}");
        assert_eq!(sealed.ok(&["events", "--since", "1h"]).lines().count(), 1);
    }

    /// A waiting command ends when nobody reads its output, and has claimed nothing then.
    fn waiting_ends_when_nobody_reads(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "held", "--board", "a"]);
        sealed.ok(&["--run", "other", "claim", "a-1"]);
        for (code, words) in [
            (0, &["events", "--follow"][..]),
            (0, &["--json", "events", "--follow", "--kind", "nothing"]),
            (1, &["claim", "a-1", "--wait", "1h"]),
            (1, &["mail", "claim", "box", "--wait", "1h"]),
            (1, &["wait", "a-1"]),
        ] {
            let mut child = waiting(&sealed, words);
            drop(child.stdout.take());
            let ended = eventually("it ends", || child.try_wait().expect("its state"));
            assert_eq!(ended.code(), Some(code), "{words:?}");
            if let Some(url) = sealed.server() {
                let address = url.trim_start_matches("http://");
                eventually("the server has noticed", || (crate::serve::waiting(address) == 0).then_some(()));
            }
        }
        sealed.ok(&["release", "task/a-1@1"]);
        sealed.ok(&["mail", "push", "box", "{}"]);
        assert_eq!(sealed.ok(&["--json", "claims"]), r#"{"claims":[]}"#);
        // A lock goes on: its command matters, not its readers.
        let script = "fence lock deploy -- sh -c 'touch locked; until test -e go; do sleep 0.01; done'";
        let mut holder = sealed.command("bash").args(["-c", script]).spawn().expect("bash");
        eventually("it is locked", || sealed.path().join("locked").exists().then_some(()));
        let mut next = waiting(&sealed, &["lock", "deploy", "--wait", "--", "touch", "done"]);
        drop(next.stdout.take());
        std::fs::write(sealed.path().join("go"), "").expect("written");
        assert!(holder.wait().expect("its end").success());
        assert!(next.wait().expect("its end").success());
        assert!(sealed.path().join("done").exists());
    }

    fn wait_for_any_of_several(sealed: Sealed) {
        sealed.ok(&["init"]);
        for title in ["one", "two", "three"] {
            sealed.ok(&["add", title]);
        }
        sealed.ok(&["cancel", "main-2"]);
        assert_eq!(sealed.fence(&["wait", "main-1", "main-2", "--any"]).code, 1);
        sealed.ok(&["claim", "main-1"]);
        sealed.ok(&["done"]);
        assert_eq!(sealed.fence(&["wait", "main-1", "main-2", "--any"]).code, 0, "one was completed");
        assert_eq!(sealed.fence(&["wait", "main-1", "main-2"]).code, 1, "one was not");
    }
}
