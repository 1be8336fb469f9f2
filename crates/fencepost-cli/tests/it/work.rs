//! `fence work` with real processes and real signals.

use crate::{
    on_both,
    running::{Running, ask, leader, members, read, until},
    sealed::{Finished, Sealed},
};
use fencepost::{admin, event, run};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use std::{collections::HashMap, fs};

/// A child that writes its process id and its run when it has begun, and waits for a file.
const WAITS: &str = r#"echo $$ > "begun.$FENCE_RUN.new"; mv "begun.$FENCE_RUN.new" "begun.$FENCE_RUN"
until [ -e go ]; do sleep 0.02; done"#;

/// Adds this many tasks to board b.
fn add(sealed: &Sealed, count: usize) {
    let lines: String = (1..=count).map(|n| format!("{{\"title\": \"task {n}\"}}\n")).collect();
    fs::write(sealed.path().join("plan.jsonl"), lines).expect("written");
    sealed.ok(&["add", "-f", "plan.jsonl", "--board", "b"]);
}

fn work(sealed: &Sealed, words: &[&str]) -> Running {
    Running::fence(sealed, &[&["work"], words].concat())
}

fn json(sealed: &Sealed, words: &[&str]) -> Value {
    serde_json::from_str(&sealed.ok(&[&["--json"], words].concat())).expect("JSON")
}

/// The state of a task, its attempts, and its last failure.
fn task(sealed: &Sealed, id: &str) -> (String, i64, String) {
    let shown = json(sealed, &["show", id]);
    let task = &shown["task"];
    let text = |field: &str| task[field].as_str().unwrap_or_default().to_owned();
    (text("status"), task["attempts"].as_i64().expect("a number"), text("failure_reason"))
}

/// The children that have begun: run and process.
fn begun(sealed: &Sealed) -> Vec<(String, i32)> {
    let entries = fs::read_dir(sealed.path()).expect("a directory").flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let runs = names.filter_map(|name| Some(name.strip_prefix("begun.")?.to_owned()));
    let runs = runs.filter(|run| !run.ends_with(".new"));
    let child = |run: String| {
        let process = read(&sealed.path().join(format!("begun.{run}"))).trim().parse().expect("a number");
        (run, process)
    };
    runs.map(child).collect()
}

fn begun_one(sealed: &Sealed) -> (String, i32) {
    until("a child has begun", || begun(sealed).len() == 1);
    begun(sealed).remove(0)
}

fn go(sealed: &Sealed) {
    fs::write(sealed.path().join("go"), "").expect("written");
}

/// How often each kind of event happened to each resource.
fn log(sealed: &Sealed) -> HashMap<(String, String), usize> {
    sealed.readable();
    ask(sealed, async |fleet| {
        let mut counts = HashMap::new();
        let mut list = event::List { limit: Some(1000), ..event::List::default() };
        loop {
            let page = fleet.call(list.clone()).await.expect("a page");
            list.since = Some(page.position);
            for event in page.events {
                *counts.entry((event.kind, event.resource)).or_default() += 1;
            }
            if !page.more {
                let report = fleet.call(admin::Check {}).await.expect("the check runs");
                assert!(report.ok, "{:#?}", report.violations);
                return counts;
            }
        }
    })
}

/// The runs that a poll gave a trigger.
fn runs(sealed: &Sealed) -> Vec<run::Run> {
    let list = run::List { run: None, all: true, limit: Some(1000) };
    let runs = ask(sealed, async |fleet| fleet.call(list).await).expect("the runs").runs;
    runs.into_iter().filter(|run| run.trigger.is_some()).collect()
}

#[track_caller]
fn succeeded(said: &Finished) {
    assert_eq!(said.code, 0, "{said:?}");
}

on_both! {
    /// Sixty triggers of all types, three children at a time: each trigger has one child, and none has two.
    fn each_trigger_has_one_child(sealed: Sealed) {
        sealed.ok(&["init"]);
        add(&sealed, 50);
        sealed.ok(&["agent", "join", "bob"]);
        sealed.ok(&["channel", "create", "general"]);
        for n in 1..=5 {
            sealed.ok(&["inbox", "send", "bob", &format!("message {n}"), "--source", "test"]);
            sealed.ok(&["assign", &format!("b-{n}"), "bob"]);
        }
        sealed.ok(&["offer", "b-6", "bob"]);
        sealed.ok(&["channel", "post", "general", "@bob hello", "--agent", "lead"]);
        // Three that are there at the same time meet; a fourth would be seen.
        sealed.script("cmd", r#"
            echo "$FENCE_TRIGGER $FENCE_RUN ${FENCE_CLAIM-none} $(wc -c < "$FENCE_TRIGGER_FILE") $FENCE_AGENT" >> started
            touch "in.$FENCE_RUN"; [ "$(ls in.* | wc -l)" -le 3 ] || touch too-many
            [ "$FENCE_TRIGGER" = task_offered ] && fence accept b-6
            cat > "prompt.$FENCE_TRIGGER"
            rm "in.$FENCE_RUN"; echo "result of $FENCE_RUN""#);
        let said = sealed.sh("MAX_CONCURRENT_TASKS=3 fence work --agent bob --drain -- ./cmd");
        succeeded(&said);
        assert!(!sealed.path().join("too-many").exists(), "more than three at a time");
        let started = read(&sealed.path().join("started"));
        let started: Vec<Vec<&str>> = started.lines().map(|line| line.split(' ').collect()).collect();
        let of = |kind: &str| started.iter().filter(|words| words[0] == kind).count();
        assert_eq!(["task_offered", "task_assigned", "inbox_message", "unread_mentions", "pool_task"].map(of), [1, 6, 1, 1, 44]);
        let mut names: Vec<&str> = started.iter().map(|words| words[1]).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), started.len(), "every child has a run of its own");
        assert!(started.iter().all(|words| words[4] == "bob" && words[3].parse::<usize>().is_ok_and(|size| size > 100)));
        // One claim is named; the five messages are five claims.
        assert!(started.iter().all(|words| (words[2] == "none") == (words[0] == "inbox_message")), "{started:?}");
        let counts = log(&sealed);
        for n in 1..=50 {
            let of = |kind: &str| counts.get(&(kind.to_owned(), format!("task/b-{n}"))).copied().unwrap_or(0);
            assert_eq!((of("task.completed"), of("task.claimed")), (1, if n == 6 { 2 } else { 1 }), "b-{n}");
        }
        assert_eq!(runs(&sealed).len(), started.len());
        assert!(runs(&sealed).iter().all(|run| run.reason.as_deref() == Some("done") && run.exit.as_deref() == Some("0")));
        let shown = json(&sealed, &["show", "b-9"]);
        let output = shown["task"]["output"].as_str().unwrap_or_default().to_owned();
        let run = output.trim_end().strip_prefix("result of ").expect("its output").to_owned();
        assert_eq!(sealed.ok(&["log", &run]), output.trim_end());
        let prompt = read(&sealed.path().join("prompt.inbox_message"));
        assert!(prompt.contains("You are agent bob.") && prompt.contains("\n    message 5\n"), "{prompt}");
    }
}
