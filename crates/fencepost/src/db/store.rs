//! A store runs scripts in transactions, and says what is new in the log.

use super::{
    Answer, BoxFuture, Due, News, Notes, Opening, Stmt, Tx,
    options::Options,
    postgres::Postgres,
    sqlite::{Mark, Sqlite},
    stats::Stats,
};
use crate::{
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

/// One call, as a store runs it. The engine says what is read at its opening, what is done first, and what the call
/// does; the store says in which transactions.
///
/// On PostgreSQL each step is a transaction of its own. On SQLite each is a savepoint, and a batch of calls is one
/// transaction. A step may run more than once: PostgreSQL can ask for another try.
pub(crate) trait Script: Send + Sync {
    fn caller(&self) -> &Caller;
    /// Reads that open the transaction. PostgreSQL sends them with BEGIN.
    fn reads(&self) -> Vec<Stmt>;
    /// Whether the call needs to know the next deadline. On PostgreSQL that is the dearest of the opening reads.
    fn reads_due(&self) -> bool;
    /// The opening, from the answers to [`Self::reads`].
    fn opening(&self, due: Option<Due>, answers: Vec<Answer>) -> Result<Opening>;
    /// The work to be committed before the call's own, which stands even if the call is refused.
    fn first(&self, opening: &Opening, now: Time) -> Result<First>;
    /// Renews or ends the caller's run.
    fn renew<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<()>>;
    /// One batch of expiry. Gives how many things changed.
    fn expire<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<u64>>;
    /// The call's own work.
    fn run<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<AnyReply>>;
    /// It declares that the fleet was restored here. Until then every other call is refused.
    fn declares_restore(&self) -> bool;
}

/// The work to be committed before a call's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct First {
    pub renew: bool,
    pub expire: bool,
}

/// A reply, and what the call left beside it.
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
            // Boxed, as all that is long: otherwise every call on SQLite would allocate room for PostgreSQL's steps, too.
            Store::Postgres(db) => Box::pin(db.write(script)).await,
        }
    }

    /// What is new in the log since this was last asked?
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

    /// Somebody waits from now on.
    pub fn listen(&self) {
        if let Store::Postgres(db) = self {
            db.listen();
        }
    }

    /// Until another node notifies us that there may be news. SQLite has no notifications.
    pub async fn notified(&self) {
        match self {
            Store::Sqlite(..) => std::future::pending().await,
            Store::Postgres(db) => db.notified().await,
        }
    }

    /// Does [`Self::notified`] also end for commits of this process?
    pub fn notifies_itself(&self) -> bool {
        matches!(self, Store::Postgres(_))
    }

    pub fn has_one_writer(&self) -> bool {
        matches!(self, Store::Sqlite(..))
    }

    /// Tells other processes that somebody here waits for a resource, until the mark is dropped. PostgreSQL notifies all
    /// nodes at the same time, so that none has to be let go first.
    pub fn mark_wanted(&self, resource: &str) -> Option<Mark> {
        match self {
            Store::Sqlite(db, _) => Some(db.wanted.mark(resource)),
            Store::Postgres(_) => None,
        }
    }

    /// Does another process wait for this resource?
    pub fn wanted_by_others(&self, resource: &str) -> bool {
        match self {
            Store::Sqlite(db, _) => db.wanted.by_others(resource),
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
    if let Some((scheme, _)) = path.split_once("://") {
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
    Ok(path.into())
}

/// How often the watcher asks a database whether there is news, if nothing notifies it sooner.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// The pause between two questions, which grows while there is none.
    pub least: Duration,
    pub most: Duration,
    /// This long after all waiters were last woken, all are woken anyway.
    pub wake_all: Duration,
}

impl Pace {
    /// A question takes 3 us (25 us with the way to its thread and back), so a hundred a second are a quarter of a
    /// percent of a core, and a commit of another process is noticed after 5 ms on average.
    pub const SQLITE: Pace =
        Pace { least: Duration::from_millis(10), most: Duration::from_millis(10), wake_all: Duration::MAX };

    pub fn longer(self, pause: Duration) -> Duration {
        (pause * 3 / 2).clamp(self.least, self.most)
    }
}
