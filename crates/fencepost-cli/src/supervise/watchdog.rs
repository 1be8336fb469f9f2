//! A second process that kills the command if the supervisor cannot.
//!
//! If the supervisor gets KILL or is stopped, nobody renews the claim, and the command must not run on without it. So a watchdog
//! in a process group of its own, which signals to the others do not reach, holds the other end of a pipe. When the pipe closes,
//! or when the deadline passes by which the supervisor should have renewed the claim, it kills the command's group.
//!
//! Between the start of the command and the first line in the pipe is a moment (a write) in which a KILL would leave the command
//! without a watchdog. Then the lease expires, and everything that checks the fence refuses the command.

use crate::identity::process;
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

/// One line in the pipe; the last one counts.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Instructions {
    group: i32,
    /// Processes that left the group and have this run in their environment are killed, too.
    run: Option<String>,
    /// In ticks since boot, which are the same in every process.
    kill_at: Option<Ticks>,
}

/// The supervisor's end.
#[derive(Debug)]
pub struct Watchdog {
    process: Child,
}

impl Watchdog {
    /// Starts the watchdog, before there is a command.
    pub fn start() -> Result<Self> {
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
        Ok(Self { process })
    }

    /// Tells the watchdog which group to kill, and when. A failure is ignored: the supervisor goes on without a watchdog.
    pub fn instruct(&mut self, group: i32, run: Option<&str>, kill_at: Option<Ticks>) {
        let instructions = Instructions { group, run: run.map(str::to_owned), kill_at };
        let line = serde_json::to_string(&instructions).unwrap_or_default();
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
    if let Some(instructions) = current {
        kill(Some(instructions.group), instructions.run.as_deref());
    }
}

fn kill_at(instructions: Option<&Instructions>) -> Option<Ticks> {
    instructions.and_then(|instructions| instructions.kill_at)
}

/// Kills a group, and the processes that left it and have this run in their environment, until none is left, however fast they fork.
pub fn kill(group: Option<i32>, run: Option<&str>) {
    loop {
        let group = group.filter(|group| process::group_is_alive(*group));
        if let Some(group) = group.and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let outside = run.into_iter().flat_map(|run| process::of_run(run, group.unwrap_or(0)));
        let outside = outside.map(|process| process.send(Signal::KILL)).count();
        if group.is_none() && outside == 0 {
            return;
        }
        std::thread::yield_now();
    }
}
