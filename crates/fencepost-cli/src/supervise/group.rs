//! The command in a process group of its own, and the terminal that it may use.

use super::{rule::Event, watchdog::Dismissed};
use crate::{identity::process, output::streams};
use rustix::{
    process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid},
    termios::{Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp},
};
use std::{
    fs::File,
    io::{self, IsTerminal},
    os::unix::process::CommandExt,
    process::{Child, Command},
};

/// A command and the processes that it started, as long as they stay in its group. With a run, those that left the group belong to
/// it, too, if the run is in their environment.
#[derive(Debug)]
pub struct Group {
    /// Nobody waits for the leader until the group is empty, so that the system cannot use its id for another process.
    leader: Child,
    id: Pid,
    run: Option<String>,
    tty: Option<Tty>,
    exited: bool,
}

/// Whether a command may use the terminal that we were started on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TerminalAccess {
    Foreground,
    /// It is one of several commands, and none of them gets the terminal.
    Background,
}

impl Group {
    pub fn start(mut command: Command, access: TerminalAccess, run: Option<String>) -> io::Result<Self> {
        let leader = command.process_group(0).spawn()?;
        let id = Pid::from_child(&leader);
        let tty = if access == TerminalAccess::Foreground { Tty::open() } else { None };
        let mut group = Self { leader, id, run, tty, exited: false };
        // In a pipeline another command may be reading the terminal. A command that reads it from the background is stopped, and
        // gets the terminal then.
        if io::stdin().is_terminal() && streams::width().is_some() {
            group.give_terminal();
        }
        Ok(group)
    }

    pub fn id(&self) -> i32 {
        self.id.as_raw_nonzero().get()
    }

    pub fn send(&self, signal: Signal) {
        // An empty group is what we wanted.
        let _ = kill_process_group(self.id, signal);
        // Only the signals that end it: somebody who left the group does not want to be stopped or woken with it.
        if let (Some(run), Signal::TERM | Signal::KILL) = (&self.run, signal) {
            process::of_run(run, self.id()).for_each(|straggler| straggler.send(signal));
        }
    }

    pub fn give_terminal(&mut self) {
        if let Some(tty) = &mut self.tty {
            tty.give(self.id);
        }
    }

    /// The events since the last poll.
    pub fn poll(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(stop) = self.wait(WaitIdOptions::STOPPED).and_then(|status| status.stopping_signal()) {
            events.extend(Signal::from_named_raw(stop).map(Event::Stopped));
        }
        let over = self.wait(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        if let Some(status) = over {
            let by_signal = || status.terminating_signal().map(|signal| signal + 128);
            let code = status.exit_status().or_else(by_signal).unwrap_or(1);
            let straggles = |run: &String| process::of_run(run, self.id()).next().is_some();
            let gone = !process::group_is_alive(self.id()) && !self.run.as_ref().is_some_and(straggles);
            // Checked after the leader ended: an empty group has nobody left that could start a process.
            events.extend(gone.then_some(Event::Gone));
            if !self.exited {
                self.exited = true;
                events.push(Event::Exited(u8::try_from(code).unwrap_or(1)));
            }
        }
        events
    }

    fn wait(&self, options: WaitIdOptions) -> Option<rustix::process::WaitIdStatus> {
        waitid(WaitId::Pid(self.id), options | WaitIdOptions::NOHANG).ok().flatten()
    }

    /// Takes the terminal back, and restores its modes if the command was killed before it could. The watchdog must be dismissed
    /// before, because the group's id is free after this.
    pub fn finish(mut self, was_killed: bool, _: Dismissed) {
        if let Some(tty) = &self.tty {
            tty.take_back(was_killed);
        }
        let _ = self.leader.wait();
    }
}

/// The terminal we were started on.
#[derive(Debug)]
struct Tty {
    file: File,
    ours: Pid,
    before: Option<Termios>,
    given: bool,
}

impl Tty {
    fn open() -> Option<Self> {
        let file = File::options().read(true).write(true).open("/dev/tty").ok()?;
        // We take the terminal back from the background, where that would stop us with TTOU.
        let mut asking = nix::sys::signal::SigSet::empty();
        asking.add(nix::sys::signal::Signal::SIGTTOU);
        asking.thread_block().ok()?;
        Some(Self { before: tcgetattr(&file).ok(), file, ours: rustix::process::getpgrp(), given: false })
    }

    /// Gives the terminal to the group, if it is ours. A job in the background cannot give it.
    fn give(&mut self, group: Pid) {
        if tcgetpgrp(&self.file).is_ok_and(|foreground| foreground == self.ours) {
            self.given = tcsetpgrp(&self.file, group).is_ok();
        }
    }

    fn take_back(&self, restore: bool) {
        if !self.given {
            return;
        }
        let _ = tcsetpgrp(&self.file, self.ours);
        if let (true, Some(before)) = (restore, &self.before) {
            let _ = tcsetattr(&self.file, rustix::termios::OptionalActions::Now, before);
        }
    }
}
