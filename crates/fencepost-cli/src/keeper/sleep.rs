//! Sleeping until a process ends, or a file changes or is removed.

use super::Owner;
use crate::identity::process::Process;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify,
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{io, os::fd::OwnedFd, path::Path, time::Duration};
// Real time: how long to sleep, and nothing about leases.
use tokio::time::Instant;

/// How often to check a process whose end the system cannot report.
const CHECK: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Sleeper {
    /// Readable when a file has changed. Without it a keeper still wakes from time to time.
    changed: Option<OwnedFd>,
    owners: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    owner: Owner,
    /// Readable when the process has ended.
    gone: Option<OwnedFd>,
}

impl Sleeper {
    /// Wakes when the keeper's file is written or touched, and when the database is moved or removed.
    pub fn new(file: &Path, database: Option<&Path>) -> Self {
        Self { changed: changes(file, database).ok(), owners: Vec::new() }
    }

    /// Wakes when one of these processes ends, and no others.
    pub fn set_owners(&mut self, owners: &[Owner]) {
        self.owners.retain(|watched| owners.contains(&watched.owner));
        for owner in owners {
            if !self.owners.iter().any(|watched| watched.owner == *owner) {
                self.owners.push(Watched { owner: owner.clone(), gone: handle(owner).ok() });
            }
        }
    }

    /// Sleeps until something happens, but no longer than this. It blocks the thread, which has nothing else to do.
    pub fn sleep(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let checks = self.owners.iter().any(|watched| watched.gone.is_none());
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            let happened = self.poll(if checks { left.min(CHECK) } else { left });
            if happened
                || self.owners.iter().any(|watched| watched.gone.is_none() && !watched.owner.is_alive())
            {
                return;
            }
        }
    }

    fn poll(&self, span: Duration) -> bool {
        let gone = self.owners.iter().filter_map(|watched| watched.gone.as_ref());
        let mut fds: Vec<_> =
            self.changed.iter().chain(gone).map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let span = Timespec { tv_sec: span.as_secs().cast_signed(), tv_nsec: span.subsec_nanos().into() };
        let happened = poll(&mut fds, Some(&span)).is_ok_and(|ready| ready > 0);
        if let Some(changed) = &self.changed {
            // The content of the notices does not matter.
            while rustix::io::read(changed, &mut [0; 4096]).is_ok_and(|read| read > 0) {}
        }
        happened
    }
}

fn handle(owner: &Owner) -> io::Result<OwnedFd> {
    // The ids are those of `/proc`, which may belong to an outer namespace.
    let same_ids = Process::own_id() == i32::try_from(std::process::id()).ok();
    let pid = Pid::from_raw(owner.pid).filter(|_| same_ids).ok_or(io::ErrorKind::Unsupported)?;
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    // The id may have been given to another process before we had the handle.
    if owner.is_alive() { Ok(handle) } else { Err(io::ErrorKind::NotFound.into()) }
}

fn changes(file: &Path, database: Option<&Path>) -> io::Result<OwnedFd> {
    use inotify::WatchFlags as W;
    let events = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
    // Writes to the database do not matter. A file that is still open is not deleted when it loses its name, but its attributes
    // change.
    let moved = W::ATTRIB | W::DELETE_SELF | W::MOVE_SELF;
    inotify::add_watch(&events, file, moved | W::MODIFY | W::DONT_FOLLOW)?;
    if let Some(database) = database {
        inotify::add_watch(&events, database, moved)?;
        // Only changes of the directory itself: each of our own checks changes its entries.
        let directory = database.parent().unwrap_or(database);
        inotify::add_watch(&events, directory, W::DELETE_SELF | W::MOVE_SELF)?;
    }
    Ok(events)
}
