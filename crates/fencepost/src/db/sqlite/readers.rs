//! The connections for reads. A read sees the last commit and never waits for the writer.

use super::{OpenedFile, SqliteConnection, now_or_never, open, sqlite_error};
use crate::{
    clock::Deadline,
    db::{Db, Opening, Outcome, Script, Tx, options::Options, stats::Stats},
    error::{Error, Result},
    sync::{self, lock},
};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, RwLock, RwLockWriteGuard},
};
use tokio::sync::Semaphore;

#[derive(Debug)]
pub(super) struct Readers {
    path: PathBuf,
    opened_file: Arc<OpenedFile>,
    idle: Mutex<Vec<SqliteConnection>>,
    permits: Arc<Semaphore>,
    /// Each read shares it; the writer takes it alone to truncate the write-ahead log.
    gate: RwLock<()>,
    /// Reads the next deadline.
    due: &'static str,
    stats: Arc<Stats>,
}

impl Readers {
    pub fn new(
        path: &Path,
        opened_file: Arc<OpenedFile>,
        options: &Options,
        stats: Arc<Stats>,
        due: &'static str,
    ) -> Self {
        Self {
            path: path.to_owned(),
            opened_file,
            idle: Mutex::new(Vec::new()),
            permits: Arc::new(Semaphore::new(options.readers.max(1))),
            gate: RwLock::new(()),
            due,
            stats,
        }
    }

    /// Waits for the current reads to end, and keeps new ones waiting while the guard is held.
    pub fn pause(&self) -> RwLockWriteGuard<'_, ()> {
        sync::write(&self.gate)
    }

    pub async fn read(self: Arc<Self>, options: Options, script: Arc<dyn Script>) -> Outcome {
        let permit = match self.permits.clone().acquire_owned().await {
            Ok(permit) => permit,
            Err(closed) => return Error::internal(closed).into(),
        };
        let task = tokio::task::spawn_blocking(move || {
            // The read keeps the permit: the caller may hang up before it is over.
            let _permit = permit;
            self.read_now(&options, &*script).unwrap_or_else(Outcome::from)
        });
        task.await.unwrap_or_else(|e| Error::internal(format!("the op panicked: {e}")).into())
    }

    fn read_now(&self, options: &Options, script: &dyn Script) -> Result<Outcome> {
        let _reading = sync::read(&self.gate);
        self.opened_file.check_path()?;
        let idle = lock(&self.idle).pop();
        let mut conn = match idle {
            Some(conn) => conn,
            None => SqliteConnection::new(
                open::reader(&self.path, options.durability)?,
                self.stats.clone(),
                self.due,
            ),
        };
        let deadline = Deadline::after(options.read_limit);
        conn.raw.progress_handler(10_000, Some(move || deadline.is_over())).map_err(sqlite_error)?;
        conn.exec("begin")?;
        let outcome = conn.snapshot(&self.opened_file, options).and_then(|(now, ahead, due)| {
            let opening = Opening { ahead, ..script.opening(Some(due), Vec::new())? };
            let mut tx = Tx::new(Db::Sqlite(&mut conn), now, script.caller().clone(), opening);
            let answer = now_or_never(|| script.run(&mut tx));
            Ok(Outcome { answer, notes: tx.into_notes() })
        });
        // A connection that fails to roll back is not used again.
        if conn.exec("rollback").is_ok() {
            lock(&self.idle).push(conn);
        }
        outcome
    }
}
