//! A running `fence` and the processes that it started, seen from outside.

use crate::sealed::{Finished, Sealed, eventually};
use fencepost::{Fleet, Time, admin, event, run};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::HashMap,
    fs::{self, File},
    io::{Seek, SeekFrom},
    path::Path,
    process::{Child, Command, Stdio},
};

/// A script that ignores TERM, as do its children. It writes `leader` when it is ready, `term` when it gets TERM, and the time to
/// `beats` as long as it lives. It pauses by reading from a pipe that nobody writes to, because 150 processes a second (`date`,
/// `sleep`) would slow all other tests.
pub const STUBBORN: &str = r#"
exec 2>/dev/null
trap 'echo term >> term' TERM
(trap "" TERM; exec sleep 1000) &
exec 3<> <(:)
(trap "" TERM
 (trap "" TERM; while :; do now=${EPOCHREALTIME/./}; echo ${now:0:13} >> beats; read -rt 0.02 <&3; done) & wait) &
echo $$ > leader
while :; do read -rt 0.02 <&3; done"#;

/// A running `fence`. Its output goes to files: a pipe would stay open as long as one of its processes lives.
pub struct Running {
    process: Child,
    out: File,
    err: File,
}

impl Running {
    pub fn start(command: &mut Command, words: &[&str]) -> Self {
        let [out, err] = [(); 2].map(|()| tempfile::tempfile().expect("a file"));
        let clone = |file: &File| Stdio::from(file.try_clone().expect("a clone"));
        command.args(words).stdin(Stdio::null()).stdout(clone(&out)).stderr(clone(&err));
        // A binary that was just written is busy for as long as another test's child, forked meanwhile, has it open.
        let process = eventually("it can be started", || match command.spawn() {
            Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => None,
            started => Some(started.expect("it starts")),
        });
        Self { process, out, err }
    }
    /// Starts `fence` with all signals at their defaults; a shell ignores some of them in background jobs.
    pub fn fence(sealed: &Sealed, words: &[&str]) -> Self {
        Self::program(sealed, "fence", words)
    }
    pub fn program(sealed: &Sealed, program: &str, words: &[&str]) -> Self {
        let mut command = sealed.command("env");
        command.args(["--default-signal=HUP,INT,QUIT,TERM,USR1,USR2", program]);
        Self::start(&mut command, words)
    }
    pub fn id(&self) -> u32 {
        self.process.id()
    }
    pub fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it is there");
    }
    /// Has it installed its signal handlers? Then it waits, or is about to.
    pub fn listens(&self) -> bool {
        let status = read(Path::new(&format!("/proc/{}/status", self.process.id())));
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
        u64::from_str_radix(caught.trim(), 16).expect("a mask") >> (Signal::INT.as_raw() - 1) & 1 == 1
    }
    /// Its standard output so far.
    pub fn out(&self) -> String {
        so_far(&self.out)
    }
    /// Its standard error so far.
    pub fn err(&self) -> String {
        so_far(&self.err)
    }
    pub fn end(mut self) -> Finished {
        let mut status = None;
        until("it ends", || {
            status = self.process.try_wait().expect("its status");
            status.is_some()
        });
        let text = |mut file: &File| {
            file.seek(SeekFrom::Start(0)).expect("its beginning");
            std::io::read_to_string(file).expect("text").trim_end().to_owned()
        };
        Finished {
            code: status.and_then(|status| status.code()).unwrap_or(-1),
            out: text(&self.out),
            err: text(&self.err),
        }
    }
}

fn so_far(file: &File) -> String {
    // The file offset is shared with the process that writes, so this must not move it.
    let mut text = vec![0; usize::try_from(file.metadata().expect("its size").len()).expect("small")];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut text, 0).expect("text");
    String::from_utf8_lossy(&text).into_owned()
}

/// A failed test leaves no process behind.
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The number that the command wrote once it was ready.
///
/// `echo` writes it, not a program such as `mv`: a bash that gets INT while a program ends takes it as meant for that program, and
/// goes on. That happened to 4 of 400.
pub fn leader(sealed: &Sealed) -> i32 {
    let file = sealed.path().join("leader");
    eventually("the command is ready", || read(&file).strip_suffix('\n')?.parse().ok())
}

pub fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Polls until it is so. The time is bounded, so that a defect ends the test.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, || is_so().then_some(()));
}

/// The processes of a group, without zombies.
pub fn members(group: i32) -> Vec<String> {
    let stats = fs::read_dir("/proc").expect("proc").flatten();
    let stats = stats.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    stats
        .filter(|stat| {
            let fields: Vec<&str> =
                stat.rsplit_once(')').map_or(vec![], |(_, rest)| rest.split_whitespace().collect());
            fields.len() > 2 && fields[0] != "Z" && fields[2] == group.to_string()
        })
        .collect()
}

/// The last sign of life of [`STUBBORN`].
pub fn beats(sealed: &Sealed) -> Option<Time> {
    let beats = read(&sealed.path().join("beats"));
    // The last line may have been cut by the kill.
    let whole = beats.lines().rfind(|line| line.len() == 13)?;
    Some(Time(whole.parse().expect("milliseconds")))
}

pub fn last_beat(sealed: &Sealed) -> Time {
    beats(sealed).expect("it lived")
}

/// The times of all beats.
fn all_beats(sealed: &Sealed) -> Vec<i64> {
    let beats = read(&sealed.path().join("beats"));
    let whole = beats.lines().filter(|line| line.len() == 13);
    whole.map(|line| line.parse().expect("milliseconds")).collect()
}

/// Did the whole machine pause for a second or longer while [`STUBBORN`] lived?
pub fn paused(sealed: &Sealed) -> bool {
    all_beats(sealed).windows(2).any(|pair| pair[1] - pair[0] >= 1000)
}

/// No process of [`STUBBORN`] lived after this moment.
#[track_caller]
pub fn over_by(sealed: &Sealed, end: Time) {
    let late = outlived(&all_beats(sealed), end.0).map(Time);
    assert_eq!(late, None, "it beat after the end of its lease at {end}");
}

/// The first beat after the end. If the whole machine paused, the process that ends the command paused, too. So a late beat counts
/// only after half a second of steady beats.
fn outlived(beats: &[i64], end: i64) -> Option<i64> {
    let mut steady_since = *beats.first()?;
    let pairs = beats.iter().zip(&beats[1..]);
    for (before, beat) in pairs {
        if beat - before > 200 {
            steady_since = *beat;
        }
        if *beat >= end && beat - steady_since >= 500 {
            return Some(*beat);
        }
    }
    None
}

#[test]
fn a_command_that_outlives_its_lease_is_noticed() {
    let steady = |from: i64, to: i64| (from..to).step_by(30).collect::<Vec<_>>();
    assert_eq!(outlived(&steady(0, 2000), 2000), None);
    assert_eq!(outlived(&steady(0, 2050), 2000), Some(2010));
    let paused = |to: i64| [steady(0, 1500), steady(5000, to)].concat();
    assert_eq!(outlived(&paused(5400), 2000), None, "it was ended as soon as possible");
    assert_eq!(outlived(&paused(5600), 2000), Some(5510), "it was not");
}

pub fn ask<T>(sealed: &Sealed, question: impl AsyncFnOnce(Fleet) -> T) -> T {
    ask_at(&sealed.url(), question)
}

pub fn ask_at<T>(url: &str, question: impl AsyncFnOnce(Fleet) -> T) -> T {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async { question(Fleet::open(url).await.expect("it opens")).await })
}

/// All events of the log. The fleet's promises are checked, too.
pub async fn events(fleet: &Fleet) -> Vec<event::Entry> {
    let report = fleet.call(admin::Check {}).await.expect("the check runs");
    assert!(report.ok, "{:#?}", report.violations);
    let mut events = Vec::new();
    let mut list = event::List { limit: Some(1000), ..event::List::default() };
    loop {
        let page = fleet.call(list.clone()).await.expect("a page");
        events.extend(page.events);
        if !page.more {
            return events;
        }
        list.since = Some(page.position);
    }
}

/// How often each kind of event happened to each resource.
pub async fn counts(fleet: &Fleet) -> HashMap<(String, String), usize> {
    let mut counts = HashMap::new();
    for event in events(fleet).await {
        *counts.entry((event.kind, event.resource)).or_default() += 1;
    }
    counts
}

/// The end of the lease of the first run that a `lock` opened.
pub fn lease_end(sealed: &Sealed) -> Time {
    let list = run::List { run: None, all: true, limit: None };
    let runs = ask(sealed, async |fleet| fleet.call(list).await).expect("the runs").runs;
    let locks = runs.iter().filter(|run| run.name.starts_with("lock-"));
    locks.min_by_key(|run| run.opened_at).expect("its run").expires_at
}
