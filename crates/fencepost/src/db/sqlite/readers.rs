//! Reads see the last commit and never wait for the writer.

use super::{Identity, Lite, now_or_never, open, sqlite_error};
use crate::{
    clock::Deadline,
    db::{Db, Opening, Outcome, Script, Tx, options::Options, stats::Stats},
    error::{Error, Result},
    sync::lock,
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
    permits: Arc<Semaphore>,
    /// Held to read; taken whole by the writer when the log must start anew.
    gate: RwLock<()>,
    /// Reads the next deadline.
    due: &'static str,
    stats: Arc<Stats>,
}

impl Readers {
    pub fn new(
        path: &Path,
        identity: Arc<Identity>,
        options: &Options,
        stats: Arc<Stats>,
        due: &'static str,
    ) -> Self {
        Self {
            path: path.to_owned(),
            identity,
            idle: Mutex::new(Vec::new()),
            permits: Arc::new(Semaphore::new(options.readers.max(1))),
            gate: RwLock::new(()),
            due,
            stats,
        }
    }

    /// Those under way are over, and nobody reads for as long as this is held.
    pub fn pause(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub async fn read(self: Arc<Self>, options: Options, script: Arc<dyn Script>) -> Outcome {
        let permit = match self.permits.clone().acquire_owned().await {
            Ok(permit) => permit,
            Err(closed) => return Error::internal(closed).into(),
        };
        let task = tokio::task::spawn_blocking(move || {
            // The permit is the read's, not the caller's, who may hang up before it is over.
            let _permit = permit;
            self.read_now(&options, &*script).unwrap_or_else(Outcome::from)
        });
        task.await.unwrap_or_else(|e| Error::internal(format!("the op panicked: {e}")).into())
    }

    fn read_now(&self, options: &Options, script: &dyn Script) -> Result<Outcome> {
        let _reading = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        self.identity.check_file()?;
        let idle = lock(&self.idle).pop();
        let mut lite = match idle {
            Some(lite) => lite,
            None => Lite::new(open::reader(&self.path, options.durability)?, self.stats.clone(), self.due),
        };
        let deadline = Deadline::after(options.read_limit);
        lite.conn.progress_handler(10_000, Some(move || deadline.is_over())).map_err(sqlite_error)?;
        lite.exec("begin")?;
        let outcome = lite.snapshot(&self.identity, options).and_then(|(now, ahead, due)| {
            let opening = Opening { ahead, ..script.opening(Some(due), Vec::new())? };
            let mut tx = Tx::new(Db::Sqlite(&mut lite), now, script.caller().clone(), opening);
            let answer = now_or_never(|| script.run(&mut tx));
            Ok(Outcome { answer, notes: tx.into_notes() })
        });
        // A connection that does not come back clean is not used again.
        if lite.exec("rollback").is_ok() {
            lock(&self.idle).push(lite);
        }
        outcome
    }
}
