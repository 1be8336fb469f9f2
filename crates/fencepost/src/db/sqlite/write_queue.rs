//! The write queue: processes take turns at one file, in the order in which they came.
//!
//! SQLite's own busy handler is unfair: the process that tries at the right moment goes first. Measured with eight
//! processes at FULL, one got 1 claim in 5 s while another got 22,802. Here a process locks the file `queue`, then the
//! file `turn`, and then unlocks `queue`. A process that has just finished a turn must lock `queue` again, and the next
//! process holds that until it has the turn. The locks are the operating system's, so a process that dies releases
//! both.
//!
//! A process that is stopped (SIGSTOP, ^Z) keeps its locks. So no process waits for its turn for longer than
//! [`TURN_TIMEOUT`]. It then writes without a turn: SQLite's own lock keeps writers apart, but not fairly.

use super::files::open_lock_file;
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

/// Thirty processes with turns of 15 ms each all have their turn within this time.
const TURN_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct WriteQueue {
    database: PathBuf,
    locks: TurnLocks,
    /// Started when this process first has to wait.
    waiter: Option<TurnWaiter>,
}

/// A turn to write, or nothing if the wait for it timed out. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct WriteTurn(Option<File>);

impl Drop for WriteTurn {
    fn drop(&mut self) {
        if let Some(turn) = &self.0 {
            let _ = turn.unlock();
        }
    }
}

impl WriteQueue {
    pub fn open(database: &Path) -> Result<Self> {
        Ok(Self { database: database.to_owned(), locks: TurnLocks::open(database)?, waiter: None })
    }

    pub fn take_turn(&mut self) -> Result<WriteTurn> {
        let failed = |e: io::Error| Error::unavailable(format!("cannot take a turn at the database: {e}"));
        if let Some(turn) = self.locks.try_lock().map_err(failed)? {
            return Ok(WriteTurn(Some(turn)));
        }
        if self.waiter.is_none() {
            self.waiter = Some(TurnWaiter::start(TurnLocks::open(&self.database)?)?);
        }
        let waiter = self.waiter.as_mut().ok_or_else(|| Error::internal("the waiter was just made"))?;
        waiter.wait().map(WriteTurn).map_err(failed)
    }
}

/// The two lock files.
#[derive(Debug)]
struct TurnLocks {
    queue: File,
    turn: File,
}

impl TurnLocks {
    fn open(database: &Path) -> Result<Self> {
        Ok(Self { queue: open_lock_file(database, "-queue")?, turn: open_lock_file(database, "-turn")? })
    }

    /// Takes the turn if no other process has it or waits for it.
    fn try_lock(&self) -> io::Result<Option<File>> {
        if !is_locked(self.queue.try_lock())? {
            return Ok(None);
        }
        let turn =
            self.turn.try_clone().and_then(|turn| Ok(is_locked(self.turn.try_lock())?.then_some(turn)));
        self.queue.unlock()?;
        turn
    }

    /// Waits in the queue for the turn.
    fn lock(&self) -> io::Result<File> {
        let turn = self.turn.try_clone()?;
        self.queue.lock()?;
        let locked = self.turn.lock();
        self.queue.unlock()?;
        locked.map(|()| turn)
    }
}

/// Did we get the lock? `false`: another process has it.
fn is_locked(tried: std::result::Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// A thread that waits for the turn, with handles of its own: waiting for a file lock has no timeout.
#[derive(Debug)]
struct TurnWaiter {
    requests: mpsc::Sender<()>,
    turns: mpsc::Receiver<io::Result<File>>,
    state: Arc<AtomicU8>,
}

/// The thread does nothing.
const IDLE: u8 = 0;
/// The thread waits for the turn, and the writer waits for the thread.
const REQUESTED: u8 = 1;
/// The thread still waits for the turn, but the writer does not.
const ABANDONED: u8 = 2;

impl TurnWaiter {
    fn start(locks: TurnLocks) -> Result<Self> {
        let (requests, requested) = mpsc::channel::<()>();
        let (send_turn, turns) = mpsc::channel();
        let state = Arc::new(AtomicU8::new(IDLE));
        let shared = state.clone();
        let wait = move || {
            while requested.recv().is_ok() {
                let turn = locks.lock();
                if shared.swap(IDLE, Ordering::SeqCst) == ABANDONED || send_turn.send(turn).is_err() {
                    let _ = locks.turn.unlock();
                }
            }
        };
        std::thread::Builder::new()
            .name("fence-queue".into())
            .spawn(wait)
            .map_err(|e| Error::unavailable(format!("cannot start a thread to wait for a turn: {e}")))?;
        Ok(Self { requests, turns, state })
    }

    /// The turn, or nothing after [`TURN_TIMEOUT`]. While the thread still waits for an abandoned turn, nothing at
    /// once.
    fn wait(&mut self) -> io::Result<Option<File>> {
        if self.state.compare_exchange(IDLE, REQUESTED, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return Ok(None);
        }
        let gone = |_| io::Error::other("the thread that waits for turns has stopped");
        self.requests.send(()).map_err(|_| gone(RecvTimeoutError::Disconnected))?;
        match self.turns.recv_timeout(TURN_TIMEOUT) {
            Ok(turn) => turn.map(Some),
            Err(RecvTimeoutError::Timeout) => {
                let abandoned =
                    self.state.compare_exchange(REQUESTED, ABANDONED, Ordering::SeqCst, Ordering::SeqCst);
                match abandoned {
                    Ok(_) => Ok(None),
                    // The turn came at the last moment.
                    Err(_) => self.turns.recv().map_err(|_| gone(RecvTimeoutError::Disconnected))?.map(Some),
                }
            }
            Err(disconnected) => Err(gone(disconnected)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_waited_for_and_a_stopped_process_is_passed_by() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("f.db");
        let mut ours = WriteQueue::open(&database).unwrap();
        let mut others = WriteQueue::open(&database).unwrap();
        let has_turn = |turn: &WriteTurn| turn.0.is_some();

        // One process stopped with the turn, and one stopped while it waited in the queue.
        let stopped = others.take_turn().unwrap();
        assert!(has_turn(&stopped));
        assert!(!has_turn(&ours.take_turn().unwrap()));
        assert!(!has_turn(&ours.take_turn().unwrap()), "the thread still waits: nobody waits for the thread");
        drop(stopped);
        // The thread gets the abandoned turn and releases it.
        while ours.waiter.as_ref().unwrap().state.load(Ordering::SeqCst) != IDLE {
            std::thread::yield_now();
        }
        others.locks.queue.lock().unwrap();
        assert!(!has_turn(&ours.take_turn().unwrap()));
        others.locks.queue.unlock().unwrap();
        while ours.waiter.as_ref().unwrap().state.load(Ordering::SeqCst) != IDLE {
            std::thread::yield_now();
        }
        drop(others.take_turn().unwrap());
        assert!(has_turn(&ours.take_turn().unwrap()));
    }
}
