//! `fence demo`, and its summary compared with the event log.

use crate::{
    running::{ask_at, events},
    screen::Terminal,
    sealed::{Sealed, eventually},
};
use rustix::process::Signal;
use std::{collections::HashMap, path::PathBuf};

/// A world whose demos are in its directory `tmp`.
fn world() -> Sealed {
    let sealed = Sealed::sqlite();
    std::fs::create_dir(sealed.path().join("tmp")).expect("a directory");
    sealed
}

/// The directories of demos.
fn stages(sealed: &Sealed) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(sealed.path().join("tmp")).expect("it").flatten();
    entries.map(|entry| entry.path()).collect()
}

#[track_caller]
fn nothing_runs(sealed: &Sealed) {
    let left = sealed.sh("grep -lz \"^FENCE_DEMO=$PWD\" /proc/[0-9]*/environ 2>/dev/null | wc -l");
    assert_eq!(left.out, "0");
}

#[test]
fn the_demo_keeps_its_promises() {
    let sealed = world();
    // The user's own settings are not those of the demo.
    let settings = "mkdir -p config/fence; printf '[work]\nprofile = \"none\"\nworktree = true\n' > config/fence/fence.toml";
    let variables = "XDG_CONFIG_HOME=$PWD/config TMPDIR=$PWD/tmp MAX_CONCURRENT_TASKS=9 FENCE_RUN=outer";
    let said = sealed.sh(&format!("{settings}; {variables} fence --json demo --keep"));
    assert_eq!(said.code, 0, "{said:?}");
    let summary: serde_json::Value =
        serde_json::from_str(said.out.lines().next().expect("a line")).expect("JSON");
    assert_eq!(summary["problems"], serde_json::json!([]), "{summary}");
    let stage = stages(&sealed).remove(0);
    let log = ask_at(&stage.join("fence.db").display().to_string(), async |fleet| events(&fleet).await);
    // Counted again, from the events alone.
    let count = |kind: &str, prefix: &str| {
        log.iter().filter(|event| event.kind == kind && event.resource.starts_with(prefix)).count()
    };
    assert_eq!(summary["tasks"], count("task.added", "task/"));
    assert_eq!(count("task.completed", "task/"), count("task.added", "task/"));
    assert_eq!(summary["messages"], count("message.completed", "message/"));
    assert_eq!(summary["mentions"], count("mentions.read", "mentions/"));
    assert_eq!(summary["runs"], count("run.triggered", "run/"));
    assert!(count("task.lapsed", "task/") >= 2, "one was killed and one was frozen");
    let mut completions: HashMap<&str, usize> = HashMap::new();
    for event in log.iter().filter(|event| event.kind == "task.completed") {
        *completions.entry(&event.resource).or_default() += 1;
    }
    assert!(completions.values().all(|n| *n == 1), "{completions:?}");
    let processes = std::fs::read_to_string(stage.join("processes")).expect("a line for each process");
    let mut runs: Vec<&str> = processes.lines().collect();
    assert_eq!(summary["processes"], runs.len());
    runs.sort_unstable();
    runs.dedup();
    assert_eq!(summary["processes"], runs.len(), "no trigger has two processes");
    nothing_runs(&sealed);
}

/// A person leaves the view, or presses Ctrl-C: nothing is left, and nobody is told of a broken promise.
#[test]
fn a_demo_that_is_stopped_leaves_nothing() {
    let sealed = world();
    let command = "env TMPDIR=$PWD/tmp fence demo";
    let mut terminal = Terminal::start(&sealed, (100, 30), command);
    terminal.shows("3 running");
    terminal.press("q");
    let raw = eventually("it is stopped", || Some(terminal.raw()).filter(|raw| raw.contains("ended with")));
    assert!(raw.contains("stopped\r\n") && !raw.contains("a promise"), "{raw}");
    assert_eq!(terminal.ended(&sealed), 0);
    assert_eq!(stages(&sealed), [] as [PathBuf; 0]);
    nothing_runs(&sealed);

    let terminal = Terminal::start(&sealed, (100, 30), &format!("{command} --keep"));
    terminal.shows("3 running");
    terminal.signal(Signal::TERM);
    let raw = eventually("it is stopped", || Some(terminal.raw()).filter(|raw| raw.contains("ended with")));
    let stage = stages(&sealed).remove(0);
    assert!(raw.contains(&format!("the fleet is kept: {}", stage.display())), "{raw}");
    assert_eq!(terminal.ended(&sealed), 128 + 15);
    nothing_runs(&sealed);
}
