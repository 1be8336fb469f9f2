//! A second process that kills the command if the supervisor cannot.
//!
//! If the supervisor gets KILL or is stopped, nobody renews the claim, and the command must not run on without it. So a watchdog
//! in a process group of its own, which signals to the others do not reach, holds the other end of a pipe. When the pipe closes,
//! or when the deadline passes by which the supervisor should have renewed the claim, it kills the command's group.
//!
//! A supervisor that dies or is stopped while it starts the command could not say which group that is. So the command has a mark in its
//! environment, which the watchdog knows before the command starts.

use crate::{identity::process, names::unique};
use fencepost::{Error, Millis, Result};
use fencepost_client::renewal::{self, Ticks};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, BufRead, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    time::Duration,
};

/// The longest sleep. After the machine was suspended, a deadline is noticed at most this late: timers stop meanwhile, and leases
/// do not.
pub const LONGEST_SLEEP: Duration = Duration::from_millis(250);

/// The variable with the mark of a supervised command.
const MARK: &str = "FENCE_WATCHED";
/// How long to look for a command that may just be starting: it has its mark after `exec`, not after `fork`.
const STARTING: Millis = Millis::seconds(1);
/// How long to try to kill a process that does not end, such as one that waits for a disk.
const TRYING: Millis = Millis::seconds(60);

/// One line in the pipe; the last one counts.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Instructions {
    mark: String,
    /// `None` until the command runs.
    group: Option<i32>,
    /// Processes that left the group and have this run in their environment are killed, too.
    run: Option<String>,
    /// In ticks since boot, which are the same in every process.
    kill_at: Option<Ticks>,
}

/// The supervisor's end.
#[derive(Debug)]
pub struct Watchdog {
    process: Child,
    instructions: Instructions,
}

impl Watchdog {
    /// Starts the watchdog, before there is a command. From now on it kills what has its mark.
    pub fn start(run: Option<&str>, kill_at: Option<Ticks>) -> Result<Self> {
        let failed =
            |e: io::Error| Error::unavailable(format!("the command's watchdog cannot be started: {e}"));
        let process = Command::new(process::own_program())
            .arg("watchdog")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let instructions =
            Instructions { mark: unique(""), group: None, run: run.map(str::to_owned), kill_at };
        let mut watchdog = Self { process, instructions };
        watchdog.tell();
        Ok(watchdog)
    }

    /// Marks the command, so that the watchdog finds it even if nobody says which group it is.
    pub fn mark(&self, command: &mut Command) {
        command.env(MARK, &self.instructions.mark);
    }

    /// Tells the watchdog which group to kill, and when.
    pub fn instruct(&mut self, group: i32, kill_at: Option<Ticks>) {
        (self.instructions.group, self.instructions.kill_at) = (Some(group), kill_at);
        self.tell();
    }

    /// A failure is ignored: the supervisor goes on without a watchdog.
    fn tell(&mut self) {
        let line = serde_json::to_string(&self.instructions).unwrap_or_default();
        if let Some(pipe) = &mut self.process.stdin {
            let _ = writeln!(pipe, "{line}");
        }
    }

    /// Stops the watchdog: the group is empty.
    pub fn dismiss(mut self) -> Dismissed {
        let _ = self.process.kill();
        let _ = self.process.wait();
        Dismissed(())
    }
}

/// Proof that no watchdog will kill a group by its id any more. Only then may the system use the id again.
#[derive(Debug)]
pub struct Dismissed(());

/// Runs the watchdog.
pub fn run() {
    // `pkill fence` means the supervisor, which needs its watchdog to the end.
    let _ = nix::sys::signal::SigSet::all().thread_block();
    let (sender, received) = mpsc::channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(io::Result::ok) {
            let _ = sender.send(serde_json::from_str::<Instructions>(&line));
        }
    });
    let mut current: Option<Instructions> = None;
    loop {
        let left = kill_at(current.as_ref()).map_or(LONGEST_SLEEP, |at| Millis(at - renewal::now()).into());
        match received.recv_timeout(left.min(LONGEST_SLEEP)) {
            Ok(new) => current = new.ok().or(current),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if kill_at(current.as_ref()).is_some_and(|at| renewal::now() >= at) {
            break;
        }
    }
    match current {
        Some(Instructions { group: Some(group), run, .. }) => kill(Some(group), run.as_deref()),
        Some(Instructions { group: None, mark, .. }) => {
            let began = renewal::now();
            while renewal::now() - began < STARTING.0 {
                process::started_with(MARK, &mark, 0).for_each(|process| process.send(Signal::KILL));
                process::look_again_later();
            }
        }
        None => {}
    }
}

fn kill_at(instructions: Option<&Instructions>) -> Option<Ticks> {
    instructions.and_then(|instructions| instructions.kill_at)
}

/// Kills a group, and the processes that left it and have this run in their environment, until none is left, however fast they fork.
pub fn kill(group: Option<i32>, run: Option<&str>) {
    let began = renewal::now();
    while renewal::now() - began < TRYING.0 {
        let group = group.filter(|group| process::group_is_alive(*group));
        if let Some(group) = group.and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let outside = run.into_iter().flat_map(|run| process::of_run(run, group.unwrap_or(0)));
        let outside = outside.map(|process| process.send(Signal::KILL)).count();
        if group.is_none() && outside == 0 {
            return;
        }
        process::look_again_later();
    }
}
