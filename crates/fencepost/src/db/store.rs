//! A store runs scripts in transactions, and reads the log for news.

use super::{
    Answer, BoxFuture, Due, News, Notes, Opening, Stmt, Tx,
    options::Options,
    postgres::Postgres,
    sqlite::{Sqlite, WaitMark},
    stats::Stats,
};
use crate::{
    address,
    caller::Caller,
    clock::Time,
    error::{Code, Error, Result},
};
use std::{
    any::Any,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// A reply whose type is erased.
pub type AnyReply = Box<dyn Any + Send>;

/// One call in the form that a store runs. The engine provides the opening reads, the prelude and the call's own work;
/// the store decides the transactions.
///
/// On PostgreSQL each step is a transaction of its own. On SQLite each step is a savepoint, and a batch of calls is one
/// transaction. A step may run more than once: PostgreSQL can ask for another attempt.
pub(crate) trait Script: Send + Sync {
    fn caller(&self) -> &Caller;
    /// The opening reads. On PostgreSQL they are sent with BEGIN.
    fn reads(&self) -> Vec<Stmt>;
    /// Does the call need the next deadline? On PostgreSQL that is the most expensive opening read.
    fn reads_due(&self) -> bool;
    /// The opening, from the answers to [`Self::reads`].
    fn opening(&self, due: Option<Due>, answers: Vec<Answer>) -> Result<Opening>;
    /// The work to commit before the call's own. It stays committed even if the call is refused.
    fn prelude_work(&self, opening: &Opening, now: Time) -> Result<PreludeWork>;
    /// Renews or ends the caller's run.
    fn renew<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<()>>;
    /// Runs one batch of expiry, and returns how many things changed.
    fn expire<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<u64>>;
    /// The call's own work.
    fn run<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<AnyReply>>;
    /// The call declares that the fleet was restored here. Until then every other call is refused.
    fn declares_restore(&self) -> bool;
}

/// The work to commit before a call's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PreludeWork {
    pub renew: bool,
    pub expire: bool,
}

/// A call's reply and its notes.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub answer: Result<AnyReply>,
    pub notes: Notes,
}

impl From<Error> for Outcome {
    fn from(error: Error) -> Self {
        Self { answer: Err(error), notes: Notes::default() }
    }
}

/// The fleet's database.
#[derive(Debug)]
pub(crate) enum Store {
    Sqlite(Sqlite, PathBuf),
    Postgres(Postgres),
}

impl Store {
    /// `due` is the statement that reads [`Due`].
    pub async fn open(url: &str, options: Options, stats: Arc<Stats>, due: &'static str) -> Result<Self> {
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Ok(Store::Postgres(Postgres::connect(url, &options, stats, due).await?));
        }
        let path = sqlite_path(url)?;
        let at = path.clone();
        let opening = tokio::task::spawn_blocking(move || Sqlite::open(&at, &options, stats, due));
        Ok(Store::Sqlite(opening.await.map_err(Error::internal)??, path))
    }

    pub async fn read(&self, script: Arc<dyn Script>) -> Outcome {
        match self {
            Store::Sqlite(db, _) => db.read(script).await,
            Store::Postgres(db) => Box::pin(db.write(script)).await,
        }
    }

    pub async fn write(&self, script: Arc<dyn Script>) -> Outcome {
        match self {
            Store::Sqlite(db, _) => db.write(script).await,
            // Boxed: otherwise the future of every call on SQLite would have the size of PostgreSQL's steps.
            Store::Postgres(db) => Box::pin(db.write(script)).await,
        }
    }

    /// The news in the log since the last question.
    pub async fn news(&self) -> Result<News> {
        match self {
            Store::Sqlite(db, _) => db.news().await,
            Store::Postgres(db) => db.news().await,
        }
    }

    pub fn pace(&self) -> Pace {
        match self {
            Store::Sqlite(..) => Pace::SQLITE,
            Store::Postgres(db) => db.pace(),
        }
    }

    /// A call is about to wait: PostgreSQL listens for notifications from now on.
    pub fn listen(&self) {
        if let Store::Postgres(db) = self {
            db.listen();
        }
    }

    /// Returns when another node notifies us that there may be news. SQLite has no notifications.
    pub async fn notified(&self) {
        match self {
            Store::Sqlite(..) => std::future::pending().await,
            Store::Postgres(db) => db.notified().await,
        }
    }

    /// Does [`Self::notified`] also return after commits of this process?
    pub fn notifies_itself(&self) -> bool {
        matches!(self, Store::Postgres(_))
    }

    pub fn has_one_writer(&self) -> bool {
        matches!(self, Store::Sqlite(..))
    }

    /// Shows other processes that a call here waits for a resource, until the mark is dropped. PostgreSQL notifies all
    /// nodes at the same time, so no node has to let others go first.
    pub fn mark_waiting(&self, resource: &str) -> Option<WaitMark> {
        match self {
            Store::Sqlite(db, _) => Some(db.contention.mark(resource)),
            Store::Postgres(_) => None,
        }
    }

    /// Does another process wait for this resource?
    pub fn others_wait_for(&self, resource: &str) -> bool {
        match self {
            Store::Sqlite(db, _) => db.contention.others_wait_for(resource),
            Store::Postgres(_) => false,
        }
    }

    /// Sends the notifications of earlier commits.
    pub fn flush(&self) -> BoxFuture<'_, ()> {
        match self {
            Store::Postgres(db) => Box::pin(db.flush()),
            Store::Sqlite(..) => Box::pin(std::future::ready(())),
        }
    }

    pub async fn backup(&self, to: &Path) -> Result<()> {
        let Store::Sqlite(_, path) = self else {
            return Err(Error::new(Code::Invalid, "a PostgreSQL fleet is not one file")
                .hint("use pg_dump; after restoring it, run: fence call admin/restored '{}'"));
        };
        let (from, to) = (path.clone(), to.to_owned());
        let copying = tokio::task::spawn_blocking(move || super::sqlite::copy_backup(&from, &to));
        copying.await.map_err(Error::internal)?
    }
}

fn sqlite_path(url: &str) -> Result<PathBuf> {
    let path = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:")).unwrap_or(url);
    if let Some((scheme, _)) = path.split_once("://").filter(|(scheme, _)| !scheme.contains('=')) {
        return Err(Error::new(
            Code::Invalid,
            format!("`{scheme}` is not a kind of database that fence knows"),
        )
        .hint("a file path, sqlite:PATH or postgres://user@host/database"));
    }
    if path.is_empty() || path == ":memory:" {
        return Err(Error::new(
            Code::Invalid,
            "a fleet lives in a file, so that other processes can share it",
        )
        .hint("name a file, such as .fence/fence.db"));
    }
    address::check_path(path)?;
    Ok(path.into())
}

/// How often the watcher asks a database for news, if nothing notifies it sooner.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// The shortest and the longest pause between two questions. The pause grows while there is no news.
    pub least: Duration,
    pub most: Duration,
    /// All waiters are woken when this much time has passed since all were last woken.
    pub wake_all: Duration,
}

impl Pace {
    /// A question takes 3 us (25 us with the way to its thread and back), so a hundred a second use a quarter of a
    /// percent of a core. A commit of another process is noticed after 5 ms on average.
    pub const SQLITE: Pace =
        Pace { least: Duration::from_millis(10), most: Duration::from_millis(10), wake_all: Duration::MAX };

    pub fn longer(self, pause: Duration) -> Duration {
        (pause * 3 / 2).clamp(self.least, self.most)
    }
}
