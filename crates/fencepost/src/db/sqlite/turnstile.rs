//! Processes take turns at one file.
//!
//! SQLite's own busy handler lets whoever asks at the right moment go first: measured with eight processes at
//! FULL, one got 1 claim in 5 s while another got 22,802. Here a process passes two doors: it takes the
//! `queue` lock, then the `turn` lock, then lets go of `queue`. Whoever has just finished a turn must first
//! get through `queue`, which the next in line holds until the turn is its own. A process that dies lets go
//! of both, because the locks are the operating system's.
//!
//! A process that is stopped (SIGSTOP, ^Z) keeps what it has. So nobody waits for its turn for longer than [`PATIENCE`]:
//! then it goes to the database without one, where SQLite's own lock keeps writers apart, if not fairly.

use super::files::{beside, open_beside};
use crate::error::{Error, Result};
use std::{
    fs::{File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

/// Thirty processes with turns of 15 ms each come round in this time.
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Turnstile {
    database: PathBuf,
    doors: Doors,
    /// Made when this process first has to wait.
    line: Option<Line>,
}

/// The turn, if it could be had; given up when dropped.
#[derive(Debug)]
pub(super) struct Turn(Option<File>);

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turn) = &self.0 {
            let _ = turn.unlock();
        }
    }
}

impl Turnstile {
    pub fn open(database: &Path) -> Result<Self> {
        Ok(Self { database: database.to_owned(), doors: Doors::open(database)?, line: None })
    }

    pub fn enter(&mut self) -> Result<Turn> {
        let failed = |e: io::Error| Error::unavailable(format!("cannot take a turn at the database: {e}"));
        if let Some(turn) = self.doors.pass_if_free().map_err(failed)? {
            return Ok(Turn(Some(turn)));
        }
        if self.line.is_none() {
            self.line = Some(Line::start(Doors::open(&self.database)?)?);
        }
        let line = self.line.as_mut().ok_or_else(|| Error::internal("the line was just made"))?;
        line.wait().map(Turn).map_err(failed)
    }
}

#[derive(Debug)]
struct Doors {
    queue: File,
    turn: File,
}

impl Doors {
    fn open(database: &Path) -> Result<Self> {
        Ok(Self { queue: lock_file(database, "-queue")?, turn: lock_file(database, "-turn")? })
    }

    fn pass_if_free(&self) -> io::Result<Option<File>> {
        if !is_free(self.queue.try_lock())? {
            return Ok(None);
        }
        let free = self.turn.try_clone().and_then(|turn| Ok(is_free(self.turn.try_lock())?.then_some(turn)));
        self.queue.unlock()?;
        free
    }

    fn pass(&self) -> io::Result<File> {
        let turn = self.turn.try_clone()?;
        self.queue.lock()?;
        let taken = self.turn.lock();
        self.queue.unlock()?;
        taken.map(|()| turn)
    }
}

fn is_free(tried: std::result::Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// A file lock cannot be waited for with a time limit. So a thread stands in line, with handles of its own.
#[derive(Debug)]
struct Line {
    asks: mpsc::Sender<()>,
    turns: mpsc::Receiver<io::Result<File>>,
    state: Arc<AtomicU8>,
}

/// The thread does nothing.
const IDLE: u8 = 0;
/// It stands in line, and the turn is waited for.
const WANTED: u8 = 1;
/// It stands in line, but nobody waits for the turn any longer.
const UNWANTED: u8 = 2;

impl Line {
    fn start(doors: Doors) -> Result<Self> {
        let (asks, asked) = mpsc::channel::<()>();
        let (give, turns) = mpsc::channel();
        let state = Arc::new(AtomicU8::new(IDLE));
        let seen = state.clone();
        let stand = move || {
            while asked.recv().is_ok() {
                let turn = doors.pass();
                if seen.swap(IDLE, Ordering::SeqCst) == UNWANTED || give.send(turn).is_err() {
                    let _ = doors.turn.unlock();
                }
            }
        };
        std::thread::Builder::new()
            .name("fence-turnstile".into())
            .spawn(stand)
            .map_err(|e| Error::unavailable(format!("cannot start a thread to wait for a turn: {e}")))?;
        Ok(Self { asks, turns, state })
    }

    /// The turn; nothing, if it is not to be had in time. While the thread is stuck nobody waits at all.
    fn wait(&mut self) -> io::Result<Option<File>> {
        if self.state.compare_exchange(IDLE, WANTED, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return Ok(None);
        }
        let gone = |_| io::Error::other("the thread that waits for turns has stopped");
        self.asks.send(()).map_err(|_| gone(RecvTimeoutError::Disconnected))?;
        match self.turns.recv_timeout(PATIENCE) {
            Ok(turn) => turn.map(Some),
            Err(RecvTimeoutError::Timeout) => {
                let given_up =
                    self.state.compare_exchange(WANTED, UNWANTED, Ordering::SeqCst, Ordering::SeqCst);
                match given_up {
                    Ok(_) => Ok(None),
                    // It came at the last moment.
                    Err(_) => self.turns.recv().map_err(|_| gone(RecvTimeoutError::Disconnected))?.map(Some),
                }
            }
            Err(disconnected) => Err(gone(disconnected)),
        }
    }
}

pub(super) fn lock_file(database: &Path, suffix: &str) -> Result<File> {
    open_beside(database, suffix).map_err(|e| {
        Error::unavailable(format!("cannot write `{}`: {e}", beside(database, suffix).display()))
            .hint("a fleet needs to write in the directory it lives in")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_waited_for_and_a_stuck_line_is_passed_by() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("f.db");
        let mut ours = Turnstile::open(&database).unwrap();
        let mut others = Turnstile::open(&database).unwrap();
        let has_turn = |turn: &Turn| turn.0.is_some();

        // A process that stopped with the turn, and one that stopped while it stood in line.
        let stopped = others.enter().unwrap();
        assert!(has_turn(&stopped));
        assert!(!has_turn(&ours.enter().unwrap()));
        assert!(!has_turn(&ours.enter().unwrap()), "the thread still stands in line: nobody waits for it");
        drop(stopped);
        // The thread gets the turn that nobody wants any longer, and lets go of it.
        while ours.line.as_ref().unwrap().state.load(Ordering::SeqCst) != IDLE {
            std::thread::yield_now();
        }
        others.doors.queue.lock().unwrap();
        assert!(!has_turn(&ours.enter().unwrap()));
        others.doors.queue.unlock().unwrap();
        while ours.line.as_ref().unwrap().state.load(Ordering::SeqCst) != IDLE {
            std::thread::yield_now();
        }
        drop(others.enter().unwrap());
        assert!(has_turn(&ours.enter().unwrap()));
    }
}
