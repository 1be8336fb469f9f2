//! Being told instead of asking: when a process ends, and when a file is touched or goes away.

use super::Owner;
use crate::process::Process;
use rustix::{
    fs::inotify,
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{io, os::fd::OwnedFd, path::Path, sync::Arc, time::Duration};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Notify,
    task::JoinHandle,
};

/// Where the system cannot tell us, we ask.
const ASK: Duration = Duration::from_secs(2);

/// Tells when a process is gone.
pub fn end_of(owner: Owner, news: Arc<Notify>) {
    tokio::spawn(async move {
        match handle(&owner) {
            Ok(handle) => drop(handle.readable().await),
            Err(_) => {
                while owner.is_alive() {
                    tokio::time::sleep(ASK).await;
                }
            }
        }
        news.notify_one();
    });
}

/// Readable when the process is gone.
fn handle(owner: &Owner) -> io::Result<AsyncFd<OwnedFd>> {
    // Ids are those that `/proc` uses, which may be those of an outer namespace.
    let same_ids = Process::own_id() == i32::try_from(std::process::id()).ok();
    let pid = Pid::from_raw(owner.pid).filter(|_| same_ids).ok_or(io::ErrorKind::Unsupported)?;
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    // The id may have been another's by the time we had the handle.
    if !owner.is_alive() {
        return Err(io::ErrorKind::NotFound.into());
    }
    AsyncFd::with_interest(handle, Interest::READABLE)
}

/// Tells whenever one of these files is written, touched, moved or removed. Without it a keeper still looks from time
/// to time.
pub fn files<'p>(paths: impl Iterator<Item = &'p Path>, news: Arc<Notify>) -> JoinHandle<()> {
    let events = touches(paths);
    tokio::spawn(async move {
        let Ok(events) = events else { return };
        while let Ok(mut ready) = events.readable().await {
            let mut ignored = [0; 4096];
            if ready.try_io(|events| Ok(rustix::io::read(events, &mut ignored)?)).is_ok() {
                news.notify_one();
            }
        }
    })
}

fn touches<'p>(paths: impl Iterator<Item = &'p Path>) -> io::Result<AsyncFd<OwnedFd>> {
    use inotify::WatchFlags as W;
    let events = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
    for path in paths {
        // A database is written all the time, and that is no news.
        inotify::add_watch(&events, path, W::ATTRIB | W::DELETE_SELF | W::MOVE_SELF)?;
    }
    AsyncFd::with_interest(events, Interest::READABLE)
}
