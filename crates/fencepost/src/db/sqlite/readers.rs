//! Reads see the last commit and never wait for the writer.

use super::{Identity, Lite, now_or_never, open, sqlite_error};
use crate::{
    clock::Deadline,
    db::tx::{Caller, Db, Place, Tx},
    engine::{
        fleet::{Options, Stats, Work},
        op::AnyReply,
    },
    error::{Error, Result},
};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard},
};
use tokio::sync::Semaphore;

#[derive(Debug)]
pub(super) struct Readers {
    path: PathBuf,
    identity: Arc<Identity>,
    idle: Mutex<Vec<Lite>>,
    places: Arc<Semaphore>,
    /// Held to read; taken whole by the writer when the log must start anew.
    gate: RwLock<()>,
    stats: Arc<Stats>,
}

impl Readers {
    pub fn new(path: &Path, identity: Arc<Identity>, options: &Options, stats: Arc<Stats>) -> Self {
        Self {
            path: path.to_owned(),
            identity,
            idle: Mutex::new(Vec::new()),
            places: Arc::new(Semaphore::new(options.readers.max(1))),
            gate: RwLock::new(()),
            stats,
        }
    }

    /// Those under way are over, and nobody reads for as long as this is held.
    pub fn pause(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub async fn read(self: Arc<Self>, options: Options, caller: Caller, work: Work) -> Result<AnyReply> {
        let place = self.places.clone().acquire_owned().await.map_err(Error::internal)?;
        let task = tokio::task::spawn_blocking(move || {
            // The place is the read's, not the caller's, who may hang up before it is over.
            let _place = place;
            self.read_now(&options, caller, &work)
        });
        task.await.unwrap_or_else(|e| Err(Error::internal(format!("the op panicked: {e}"))))
    }

    fn read_now(&self, options: &Options, caller: Caller, work: &Work) -> Result<AnyReply> {
        let _reading = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        self.identity.check_file()?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut lite = match idle {
            Some(lite) => lite,
            None => Lite::new(open::reader(&self.path, options.durability)?, self.stats.clone()),
        };
        let deadline = Deadline::after(options.read_limit);
        lite.conn.progress_handler(10_000, Some(move || deadline.is_over())).map_err(sqlite_error)?;
        lite.exec("begin")?;
        let result = lite.snapshot(&self.identity, options).and_then(|(now, opening)| {
            let mut tx = Tx::new(Db::Sqlite(&mut lite), now, caller, opening, Place::Own);
            now_or_never(|| work(&mut tx))
        });
        // A connection that does not come back clean is not used again.
        if lite.exec("rollback").is_ok() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(lite);
        }
        result
    }
}
