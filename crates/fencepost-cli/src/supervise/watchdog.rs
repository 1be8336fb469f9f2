//! If we are killed by KILL, or stopped, nobody keeps the claim, and the command must not work on without it. So a
//! second process, out of reach of what is sent to either of us, holds the other end of a pipe: when the pipe
//! closes, or the moment comes by which we should have renewed the claim, it kills the command's group.
//!
//! Between the command's start and the first line in the pipe lies a moment (a write) in which a KILL would leave
//! the command without a watchdog; then its lease ends, and all that checks the fence refuses it.

use super::{ask_the_clock, rule::Ticks, span};
use crate::process;
use fencepost::{Error, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, BufRead, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    time::Duration,
};

/// How late it may notice the moment after the machine slept: timers sleep with it, the lease does not.
pub const NAP: Duration = Duration::from_millis(250);

/// One line in the pipe; the last one counts.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Orders {
    group: i32,
    /// In ticks since boot, which are the same in every process.
    kill_at: Option<Ticks>,
}

/// The supervisor's end.
#[derive(Debug)]
pub struct Watchdog {
    process: Child,
}

impl Watchdog {
    /// Before there is anything to watch.
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

    /// It is a second pair of eyes: without it we go on.
    pub fn order(&mut self, group: i32, kill_at: Option<Ticks>) {
        let orders = serde_json::to_string(&Orders { group, kill_at }).unwrap_or_default();
        if let Some(pipe) = &mut self.process.stdin {
            let _ = writeln!(pipe, "{orders}");
        }
    }

    /// There is nothing left to watch.
    pub fn dismiss(mut self) -> Dismissed {
        let _ = self.process.kill();
        let _ = self.process.wait();
        Dismissed(())
    }
}

/// Says that no watchdog will kill a group by its id any more: only then may the id become somebody else's.
#[derive(Debug)]
pub struct Dismissed(());

/// The watchdog's own life.
pub fn watch() {
    let (line, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for orders in io::stdin().lock().lines().map_while(io::Result::ok) {
            let _ = line.send(serde_json::from_str::<Orders>(&orders));
        }
    });
    let mut orders: Option<Orders> = None;
    loop {
        let left = kill_at(orders).map_or(NAP, |at| span(at - ask_the_clock()));
        match lines.recv_timeout(left.min(NAP)) {
            Ok(new) => orders = new.ok().or(orders),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if kill_at(orders).is_some_and(|at| ask_the_clock() >= at) {
            break;
        }
    }
    if let Some(group) = orders.and_then(|orders| Pid::from_raw(orders.group)) {
        kill(group);
    }
}

fn kill_at(orders: Option<Orders>) -> Option<Ticks> {
    orders.and_then(|orders| orders.kill_at)
}

/// Until nothing is left, however fast it forks.
fn kill(group: Pid) {
    while process::group_is_alive(group.as_raw_nonzero().get()) {
        let _ = kill_process_group(group, Signal::KILL);
        std::thread::yield_now();
    }
}
