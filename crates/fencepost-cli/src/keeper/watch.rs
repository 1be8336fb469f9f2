//! Being told instead of asking: when a process ends, and when a file is touched or goes away.

use super::Owner;
use crate::process::Process;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify,
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{io, os::fd::OwnedFd, path::Path, time::Duration};
// Real time: how long to sleep, and nothing about leases.
use tokio::time::Instant;

/// Where the system cannot tell us that a process is gone, we ask.
const ASK: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Watch {
    /// Readable when a file was touched. Without it a keeper still looks from time to time.
    touched: Option<OwnedFd>,
    owners: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    owner: Owner,
    /// Readable when it is gone.
    gone: Option<OwnedFd>,
}

impl Watch {
    /// Looks out for a keeper's file being written or touched, and for that of its fleet being moved or removed.
    pub fn new(post: &Path, fleet: Option<&Path>) -> Self {
        Self { touched: touches(post, fleet).ok(), owners: Vec::new() }
    }

    /// Looks out for the end of these, and of no others.
    pub fn owners(&mut self, owners: &[Owner]) {
        self.owners.retain(|watched| owners.contains(&watched.owner));
        for owner in owners {
            if !self.owners.iter().any(|watched| watched.owner == *owner) {
                self.owners.push(Watched { owner: owner.clone(), gone: handle(owner).ok() });
            }
        }
    }

    /// Sleeps until something happened, but no longer than this. The whole thread does: it has nothing else to do.
    pub fn wait(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let asks = self.owners.iter().any(|watched| watched.gone.is_none());
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            let happened = self.sleep(if asks { left.min(ASK) } else { left });
            if happened
                || self.owners.iter().any(|watched| watched.gone.is_none() && !watched.owner.is_alive())
            {
                return;
            }
        }
    }

    fn sleep(&self, span: Duration) -> bool {
        let gone = self.owners.iter().filter_map(|watched| watched.gone.as_ref());
        let mut fds: Vec<_> =
            self.touched.iter().chain(gone).map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let span = Timespec { tv_sec: span.as_secs().cast_signed(), tv_nsec: span.subsec_nanos().into() };
        let happened = poll(&mut fds, Some(&span)).is_ok_and(|ready| ready > 0);
        if let Some(touched) = &self.touched {
            // That it was touched is all we want to know.
            while rustix::io::read(touched, &mut [0; 4096]).is_ok_and(|read| read > 0) {}
        }
        happened
    }
}

fn handle(owner: &Owner) -> io::Result<OwnedFd> {
    // Ids are those that `/proc` uses, which may be those of an outer namespace.
    let same_ids = Process::own_id() == i32::try_from(std::process::id()).ok();
    let pid = Pid::from_raw(owner.pid).filter(|_| same_ids).ok_or(io::ErrorKind::Unsupported)?;
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    // The id may have been another's by the time we had the handle.
    if owner.is_alive() { Ok(handle) } else { Err(io::ErrorKind::NotFound.into()) }
}

fn touches(post: &Path, fleet: Option<&Path>) -> io::Result<OwnedFd> {
    use inotify::WatchFlags as W;
    let events = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
    // A database is written all the time, and that is no news. A file that somebody has open is not yet deleted when
    // it has lost its name, but that changes its attributes.
    let moved = W::ATTRIB | W::DELETE_SELF | W::MOVE_SELF;
    inotify::add_watch(&events, post, moved | W::MODIFY | W::DONT_FOLLOW)?;
    if let Some(fleet) = fleet {
        inotify::add_watch(&events, fleet, moved)?;
        // Only what happens to the directory itself: in it, something happens whenever we look.
        let directory = fleet.parent().unwrap_or(fleet);
        inotify::add_watch(&events, directory, W::DELETE_SELF | W::MOVE_SELF)?;
    }
    Ok(events)
}
