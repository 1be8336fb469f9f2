//! The executor: a command in a process group of its own, and the terminal that it may need.

use super::{rule::Event, watchdog::Dismissed};
use crate::{out, process};
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

/// A command and all that it started, as long as they stay in its group.
#[derive(Debug)]
pub struct Group {
    /// Not waited for until nothing of the group is left, so that its id cannot become somebody else's.
    leader: Child,
    id: Pid,
    terminal: Option<Terminal>,
    exited: bool,
}

/// Where a command works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seat {
    /// It may have the terminal that we were started on.
    Foreground,
    /// It is one of several, and none of them has the terminal.
    Background,
}

impl Group {
    pub fn start(mut command: Command, seat: Seat) -> io::Result<Self> {
        let leader = command.process_group(0).spawn()?;
        let id = Pid::from_child(&leader);
        let terminal = if seat == Seat::Foreground { Terminal::open() } else { None };
        let mut group = Self { leader, id, terminal, exited: false };
        // In a pipeline the terminal may be our neighbour's to read. A command that wants it will be stopped for
        // asking, and gets it then.
        if io::stdin().is_terminal() && out::width().is_some() {
            group.give_terminal();
        }
        Ok(group)
    }

    pub fn id(&self) -> i32 {
        self.id.as_raw_nonzero().get()
    }

    pub fn send(&self, signal: Signal) {
        // Nobody left to hear it is what we wanted.
        let _ = kill_process_group(self.id, signal);
    }

    pub fn give_terminal(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.give(self.id);
        }
    }

    /// What happened since it was last asked.
    pub fn look(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(stop) = self.wait(WaitIdOptions::STOPPED).and_then(|status| status.stopping_signal()) {
            events.extend(Signal::from_named_raw(stop).map(Event::Stopped));
        }
        let over = self.wait(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        if let Some(status) = over {
            let by_signal = || status.terminating_signal().map(|signal| signal + 128);
            let code = status.exit_status().or_else(by_signal).unwrap_or(1);
            let gone = !process::group_is_alive(self.id());
            // Nothing is left if nothing is left at the moment when it ends.
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

    /// Once it is over. The terminal is ours again, and as it was if the command had no chance to see to it.
    pub fn bury(mut self, was_stopped: bool, _: Dismissed) {
        if let Some(terminal) = &self.terminal {
            terminal.take_back(was_stopped);
        }
        let _ = self.leader.wait();
    }
}

/// The terminal we were started on.
#[derive(Debug)]
struct Terminal {
    tty: File,
    ours: Pid,
    before: Option<Termios>,
    given: bool,
}

impl Terminal {
    fn open() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        // We take it back from the background, where asking for it would stop us.
        let mut asking = nix::sys::signal::SigSet::empty();
        asking.add(nix::sys::signal::Signal::SIGTTOU);
        asking.thread_block().ok()?;
        Some(Self { before: tcgetattr(&tty).ok(), tty, ours: rustix::process::getpgrp(), given: false })
    }

    /// Only if it is ours to give: a job in the background has no say.
    fn give(&mut self, group: Pid) {
        if tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == self.ours) {
            self.given = tcsetpgrp(&self.tty, group).is_ok();
        }
    }

    fn take_back(&self, restore: bool) {
        if !self.given {
            return;
        }
        let _ = tcsetpgrp(&self.tty, self.ours);
        if let (true, Some(before)) = (restore, &self.before) {
            let _ = tcsetattr(&self.tty, rustix::termios::OptionalActions::Now, before);
        }
    }
}
