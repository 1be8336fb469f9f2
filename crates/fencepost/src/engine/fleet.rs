//! A fleet: one database and everything in it.
//!
//! Every crate that awaits an `async fn` compiles its body. So what other crates await, and is not small, is a
//! [`BoxFuture`] made here.

use crate::{
    clock::{Clock, Millis},
    db::{
        postgres::Postgres,
        sqlite::{Mark, Sqlite},
        tx::{BoxFuture, Caller, Place, Stmt, Tx},
    },
    engine::{
        op::{Access, AnyOp, AnyReply, Op, typed},
        prelude::{Before, Due},
        unbroken::Unbroken,
        wait::{Look, News, Pace, Turn, Waiters, Wish},
    },
    error::{Code, Error, Result},
    names::check,
    ops::{
        claim::{self, Delivery, deliver::Handed},
        key::{self, Key},
        run,
    },
    params,
};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// What runs in a transaction. It may run more than once: PostgreSQL can ask for another try.
pub(crate) type Work =
    Arc<dyn for<'t, 'd> Fn(&'t mut Tx<'d>) -> BoxFuture<'t, Result<AnyReply>> + Send + Sync + 'static>;

/// Work with the type of its result erased; [`typed`] restores it.
pub(crate) fn work<T: Send + 'static>(
    run: impl for<'t, 'd> Fn(&'t mut Tx<'d>) -> BoxFuture<'t, Result<T>> + Send + Sync + 'static,
) -> Work {
    Arc::new(move |tx| {
        let run = run(tx);
        Box::pin(async move { Ok(Box::new(run.await?) as AnyReply) })
    })
}

/// One database and everything in it. Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub struct Fleet {
    store: Arc<Store>,
    waiters: Arc<Waiters>,
    stats: Arc<Stats>,
    caller: Caller,
}

#[derive(Debug)]
pub(crate) enum Store {
    Sqlite(Sqlite, PathBuf),
    Postgres(Postgres),
}

impl Store {
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
    /// Someone waits from now on.
    pub fn listen(&self) {
        if let Store::Postgres(db) = self {
            db.listen();
        }
    }
    /// Until the database's own messenger says that there may be news, if it has one.
    pub async fn told(&self) {
        match self {
            Store::Sqlite(..) => std::future::pending().await,
            Store::Postgres(db) => db.told().await,
        }
    }
    /// Does [`Self::told`] tell of the commits of this process, too?
    pub fn tells(&self) -> bool {
        matches!(self, Store::Postgres(_))
    }
    /// Does what is due by time alone, as far as others do not have it. Gives how long it is until something else is;
    /// nothing at all, if something is due still.
    pub async fn settle(&self) -> Result<Option<Millis>> {
        let look = work(|tx| {
            Box::pin(async move {
                let due = Due::read(&tx.one(Due::statement()).await?)?;
                let left = due.at.map(|at| at.since(tx.now));
                Ok(if due.is_due(tx.now) { Some(Millis(0)) } else { left })
            })
        });
        let sweep = work(|tx| Box::pin(run::sweep::sweep(tx)));
        loop {
            let next: Option<Millis> = typed(self.read(Caller::default(), look.clone()).await?)?;
            if next != Some(Millis(0)) {
                return Ok(next);
            }
            let swept = self.write(Before::nothing(), Caller::default(), Place::Own, sweep.clone()).await?;
            if typed::<u64>(swept)? == 0 {
                return Ok(next);
            }
        }
    }
    /// Tells other processes that somebody here waits for a lock, until the mark is dropped. On PostgreSQL nodes are told of
    /// what is free at the same time, and none has to be let go first.
    pub fn mark_wanted(&self, lock: &str) -> Option<Mark> {
        match self {
            Store::Sqlite(db, _) => Some(db.wanted.mark(lock)),
            Store::Postgres(_) => None,
        }
    }
    /// Does another process wait for this lock?
    pub fn wanted_by_others(&self, lock: &str) -> bool {
        match self {
            Store::Sqlite(db, _) => db.wanted.by_others(lock),
            Store::Postgres(_) => false,
        }
    }
    /// The number of the last claim of this lock.
    pub async fn last_fence(&self, lock: &str) -> Result<Option<i64>> {
        let lock = lock.to_owned();
        let look = work(move |tx| {
            let sql = "select fence from lock where name = ?1";
            let select = Stmt::new(sql, params![&lock]);
            Box::pin(async move {
                tx.one(select).await?.rows.first().map(|row| row.get::<i64>("fence")).transpose()
            })
        });
        typed(self.read(Caller::default(), look).await?)
    }
    fn has_one_writer(&self) -> bool {
        matches!(self, Store::Sqlite(..))
    }
    async fn read(&self, caller: Caller, work: Work) -> Result<AnyReply> {
        match self {
            Store::Sqlite(db, _) => db.read(caller, work).await,
            Store::Postgres(db) => Box::pin(db.read(caller, work)).await,
        }
    }
    async fn write(&self, before: Before, caller: Caller, place: Place, work: Work) -> Result<AnyReply> {
        match self {
            Store::Sqlite(db, _) => db.write(before, caller, place, work).await,
            // Boxed, as all that is long: else every call on SQLite would allocate room for PostgreSQL's steps, too.
            Store::Postgres(db) => Box::pin(db.write(before, caller, place, work)).await,
        }
    }
}

/// What a look noted beside its answer.
#[derive(Debug, Clone, Default)]
struct Seen(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    again_in: Option<Millis>,
    own_in: Option<Millis>,
    wishes: Vec<Wish>,
    handed: Vec<Handed>,
    more_expires: bool,
}

impl Seen {
    fn note<T>(&self, answer: T, tx: &mut Tx<'_>) -> T {
        let noted = Noted {
            again_in: tx.again_at.map(|at| at.since(tx.now)),
            own_in: tx.own_again_at.map(|at| at.since(tx.now)),
            wishes: std::mem::take(&mut tx.wishes),
            handed: std::mem::take(&mut tx.handed),
            more_expires: tx.opening.expired > 0 && tx.opening.due.is_due(tx.now),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = noted;
        answer
    }

    fn look(self, op: &dyn AnyOp, answer: Result<AnyReply>) -> Look<AnyReply> {
        let Noted { again_in, own_in, wishes, handed, .. } =
            std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        Look { not_yet: op.not_yet(&answer), answer, again_in, own_in, wishes, handed }
    }

    /// The batch of expiry before this look changed something, and left something that is due.
    fn more_expires(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).more_expires
    }
}

/// How commits reach the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Every commit is on the disk before it is acknowledged.
    #[default]
    Full,
    /// SQLite only: faster, and a power cut can undo the last commits. (A crash of the process cannot.) Fences
    /// still never repeat: they jump ahead at the next start.
    Normal,
}

impl Durability {
    pub(crate) fn pragma(self) -> &'static str {
        match self {
            Durability::Full => "full",
            Durability::Normal => "normal",
        }
    }
}

/// Settings of an open fleet. The defaults are meant to be right.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    pub clock: Clock,
    pub durability: Durability,
    /// Make the fleet if it is not there.
    pub create: bool,
    /// Bring the schema up to date. If not, a fleet that is behind is refused as it is.
    pub migrate: bool,
    /// SQLite: reads at the same time.
    pub readers: usize,
    /// PostgreSQL: connections in the pool. One more listens while somebody waits, and up to two take numbers while
    /// several add tasks.
    pub connections: usize,
    /// How long one call may wait for the database before it gives up.
    pub call_limit: Duration,
    /// PostgreSQL: the longest pause between two statements of one transaction. The server ends a transaction that pauses
    /// longer, so that a frozen process keeps no row locked.
    pub idle_limit: Duration,
    /// SQLite: how long one read may take. It bounds how much of the log a reader can keep from being reused.
    pub read_limit: Duration,
    /// SQLite: the size of the write-ahead log past which it is started anew.
    pub wal_limit: u64,
    /// SQLite: the largest the database may grow, in pages of 4 KiB.
    pub max_pages: Option<u32>,
    /// Stop migrating at this version. For tests of migrations.
    #[doc(hidden)]
    pub schema_version: Option<i64>,
    /// PostgreSQL: one of each kind of waiter looks this long after all were last woken. A claim skips what another
    /// transaction has locked; if that is then rolled back, because its node died, no event says that the item is free.
    /// None in tests of what wakes waiters.
    #[doc(hidden)]
    pub look_anyway: Option<Duration>,
    /// PostgreSQL: news is asked for now and then, in case a notice was lost. Not in tests of notices.
    #[doc(hidden)]
    pub ask_anyway: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Clock::System,
            durability: Durability::Full,
            create: true,
            migrate: true,
            readers: 4,
            connections: 16,
            call_limit: Duration::from_secs(30),
            idle_limit: Duration::from_secs(10),
            read_limit: Duration::from_secs(10),
            wal_limit: 64 * 1024 * 1024,
            max_pages: None,
            schema_version: None,
            look_anyway: Some(Duration::from_secs(10)),
            ask_anyway: true,
        }
    }
}

impl Fleet {
    /// Opens, or creates, the fleet at a file path, `sqlite:PATH` or `postgres://…`.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, Options::default()).await
    }

    pub fn open_with(url: &str, options: Options) -> BoxFuture<'_, Result<Self>> {
        Box::pin(async move {
            let stats = Arc::new(Stats::default());
            let clock = options.clock.clone();
            let store = if url.starts_with("postgres://") || url.starts_with("postgresql://") {
                Store::Postgres(Postgres::connect(url, &options, stats.clone()).await?)
            } else {
                let path = sqlite_path(url)?;
                let (at, stats) = (path.clone(), stats.clone());
                let opening = tokio::task::spawn_blocking(move || Sqlite::open(&at, &options, stats));
                Store::Sqlite(opening.await.map_err(Error::internal)??, path)
            };
            let store = Arc::new(store);
            let waiters = Waiters::new(store.clone(), clock);
            Ok(Self { store, waiters, stats, caller: Caller::default() })
        })
    }

    /// The same fleet, called by this agent: events say so. (Who came with an agent's key stays that agent.)
    #[must_use]
    pub fn as_agent(&self, agent: impl Into<String>) -> Self {
        let agent = self.caller.bound_agent().map_or_else(|| agent.into(), str::to_owned);
        Self { caller: Caller { agent: Some(agent), ..self.caller.clone() }, ..self.clone() }
    }

    /// The key that has this secret, if there is one that was not revoked.
    pub fn key(&self, secret: &str) -> BoxFuture<'_, Result<Option<Key>>> {
        let secret = secret.to_owned();
        let find = work(move |tx| {
            let secret = secret.clone();
            Box::pin(async move { key::find(tx, &secret).await })
        });
        Box::pin(async move { typed(self.store.read(Caller::default(), find).await?) })
    }

    /// Whether callers from afar must show a key: the fleet has one, or ever had one.
    pub fn asks_for_key(&self) -> BoxFuture<'_, Result<bool>> {
        let keyed = work(|tx| Box::pin(key::is_keyed(tx)));
        Box::pin(async move { typed(self.store.read(Caller::default(), keyed).await?) })
    }

    /// The same fleet, called by who has this key: what it may not do is refused with `forbidden`.
    #[must_use]
    pub fn as_key(&self, key: &Key) -> Self {
        let caller =
            Caller { agent: key.agent.clone(), key: Some(Arc::new(key.clone())), ..Caller::default() };
        Self { caller, ..self.clone() }
    }

    /// The same fleet, called from afar without a key. That is refused to one who waits once there is a key.
    #[must_use]
    pub fn as_guest(&self) -> Self {
        Self { caller: Caller { is_guest: true, ..Caller::default() }, ..self.clone() }
    }

    /// Refused if the key that this caller came with is not enough.
    pub(crate) fn may(&self, what: &str, access: Access) -> Result<()> {
        self.caller.may(what, access)
    }

    /// Runs one op in a transaction of its own. If it wants to wait, it runs until the answer is no "not yet" or
    /// its time is over; dropping the call is hanging up.
    pub async fn call<O: Op>(&self, op: O) -> Result<O::Reply> {
        typed(self.call_any(op.erase()).await?)
    }

    /// The same, for one who may hang up at any moment. A claim that this call makes is given back unless its delivery
    /// is said to have succeeded: also if the call is dropped while it is being committed.
    pub async fn deliver<O: Op>(&self, op: O) -> Result<(O::Reply, Delivery)> {
        let (reply, delivery) = self.deliver_any(op.erase()).await?;
        Ok((typed(reply)?, delivery))
    }

    fn call_any(&self, op: Arc<dyn AnyOp>) -> BoxFuture<'_, Result<AnyReply>> {
        Box::pin(async move {
            self.caller.may(op.name(), op.access())?;
            let Some(wait) = op.wait() else {
                if op.peeks() || op.before().settles() {
                    return Box::pin(self.look(op, Turn::ONLY)).await.answer;
                }
                return self.run(&*op.clone(), Arc::new(move |tx| op.run(tx))).await;
            };
            check::wait(wait)?;
            Box::pin(self.waiters.wait(op.lock(), wait, |turn| self.look(op.clone(), turn))).await
        })
    }

    /// [`Self::deliver`] with the types erased.
    pub fn deliver_any(&self, op: Arc<dyn AnyOp>) -> BoxFuture<'_, Result<(AnyReply, Delivery)>> {
        Box::pin(async move {
            if !op.before().settles() {
                return Ok((self.call_any(op).await?, Delivery::new(self.clone(), Vec::new())));
            }
            self.may(op.name(), op.access())?;
            let Some(wait) = op.wait() else { return self.hand(op, Turn::ONLY).await.answer };
            check::wait(wait)?;
            Box::pin(self.waiters.wait(op.lock(), wait, |turn| self.hand(op.clone(), turn))).await
        })
    }

    /// One look, to its end: if nobody is there to hear of it, what it took is dropped, and so given back.
    async fn hand(&self, op: Arc<dyn AnyOp>, turn: Turn) -> Look<(AnyReply, Delivery)> {
        let fleet = self.clone();
        let looking = Unbroken::new(async move {
            let Look { answer, not_yet, again_in, own_in, wishes, handed } = fleet.look(op, turn).await;
            let answer = answer.map(|reply| (reply, Delivery::new(fleet, handed)));
            Look { answer, not_yet, again_in, own_in, wishes, handed: Vec::new() }
        });
        looking.await.unwrap_or_else(Look::failed)
    }

    /// Gives back what one reply handed over, except for what was handed over again since.
    pub(crate) async fn give_back(&self, handed: Vec<Handed>) -> Result<u64> {
        let give_back = work(move |tx| {
            let handed = handed.clone();
            Box::pin(async move { claim::deliver::give_back(tx, &handed).await })
        });
        typed(self.write(Before::nothing(), Place::Own, give_back).await?)
    }

    async fn write(&self, before: Before, place: Place, work: Work) -> Result<AnyReply> {
        let done = self.store.write(before, self.caller.clone(), place, work).await;
        if done.is_ok() {
            self.waiters.stir();
        }
        done
    }

    /// Runs an op's work where the op belongs.
    async fn run(&self, op: &dyn AnyOp, work: Work) -> Result<AnyReply> {
        if op.reads() {
            return self.store.read(self.caller.clone(), work).await;
        }
        self.write(Before::of(op, &self.caller), Place::Own, work).await
    }

    /// One look of one who takes things: the op, and when its answer could change by time alone. If it comes away empty
    /// while expiry goes on, it looks again: until it finds something, or a batch of expiry changes nothing. Each time
    /// is a call of its own, so that others come in between. Where there is one writer, it is not asked for nothing.
    async fn look(&self, op: Arc<dyn AnyOp>, turn: Turn) -> Look<AnyReply> {
        if op.peeks() && self.store.has_one_writer() {
            let peeked = Seen::default();
            let (asked, seen) = (op.clone(), peeked.clone());
            let peek = work(move |tx| {
                let (op, seen) = (asked.clone(), seen.clone());
                Box::pin(async move {
                    let found = op.peek(tx).await;
                    seen.note(found, tx)
                })
            });
            match self.store.read(self.caller.clone(), peek).await.and_then(typed) {
                Ok(None) => {}
                Ok(Some(reply)) => return peeked.look(&*op, Ok(reply)),
                Err(e) => return Look::failed(e),
            }
        }
        let seen = Seen::default();
        let (asked, found) = (op.clone(), seen.clone());
        let work: Work = Arc::new(move |tx| {
            let (op, found) = (asked.clone(), found.clone());
            Box::pin(async move {
                tx.glance = turn.is_glance;
                let mut answer = op.run(tx).await;
                // In the same transaction: what a revoked key would take is not taken.
                if turn.has_waited
                    && !(turn.is_glance && op.not_yet(&answer))
                    && let Err(refusal) = key::check_admitted(tx).await
                {
                    tx.handed.clear();
                    answer = Err(refusal);
                }
                found.note(answer, tx)
            })
        });
        loop {
            let answer = self.run(&*op, work.clone()).await;
            if !(seen.more_expires() && op.not_yet(&answer)) {
                let look = seen.look(&*op, answer);
                self.waiters.granted(&look.handed);
                return look;
            }
        }
    }

    /// Runs several ops, and your own SQL, in one transaction: all of it is committed, or nothing.
    ///
    /// The work may run again if PostgreSQL asks for it, so it must not have side effects elsewhere, and it
    /// may await nothing but the transaction. If a completion in it was already accepted before, that is an
    /// error here (`already_finished`, with `repeat: true`), so that your rows are not written twice.
    ///
    /// On PostgreSQL it may pause for 10 s between two statements ([`Options::idle_limit`]). After a longer pause the
    /// server has ended the transaction; the next statement then fails, and the work runs again.
    ///
    /// On PostgreSQL its connections have `enable_seqscan` and `jit` off, also for your own SQL. If that has to read
    /// a large table of yours whole, put `options=-c enable_seqscan=on` into the address, or `set local` it.
    ///
    /// ```
    /// use fencepost::{Code, Fleet, Result, params, task};
    ///
    /// /// The charge and the completion commit together, and only while the claim is alive.
    /// async fn charge(fleet: &Fleet, token: &str) -> Result<i64> {
    ///     let token = token.to_owned();
    ///     fleet
    ///         .transaction(move |tx| {
    ///             let done = task::Done::new(&token);
    ///             Box::pin(async move {
    ///                 tx.execute("create table if not exists charge(card text, cents bigint)", params![]).await?;
    ///                 tx.execute("insert into charge(card, cents) values (?1, ?2)", params!["4242", 1999]).await?;
    ///                 tx.call(done).await?;
    ///                 tx.query("select count(*) as n from charge", params![]).await?[0].get::<i64>("n")
    ///             })
    ///         })
    ///         .await
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let url = dir.path().join("fence.db").display().to_string();
    /// let fleet = Fleet::open(&url).await?;
    /// fleet.call(task::Add::new("billing", "charge the card")).await?;
    /// let claimed = fleet.call(task::Claim::next("billing", "worker-1")).await?;
    /// assert_eq!(charge(&fleet, &claimed.claim.token).await?, 1);
    ///
    /// // Asking again is an error in here, and the second charge is rolled back with it.
    /// let again = charge(&fleet, &claimed.claim.token).await.unwrap_err();
    /// assert_eq!(again.code(), Code::AlreadyFinished);
    /// assert_eq!(again.field("repeat"), Some(&true.into()));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn transaction<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'t, 'd> Fn(&'t mut Tx<'d>) -> BoxFuture<'t, Result<T>> + Send + Sync + 'static,
    {
        // It could hold any SQL.
        self.caller.may("a transaction", Access::Admin)?;
        typed(self.transaction_any(self::work(work)).await?)
    }

    fn transaction_any(&self, work: Work) -> BoxFuture<'_, Result<AnyReply>> {
        Box::pin(self.write(Before::nothing(), Place::Embedded, work))
    }

    /// Copies a SQLite fleet to a new file, while others use it. A PostgreSQL fleet is backed up by `pg_dump`.
    pub async fn backup(&self, to: &Path) -> Result<()> {
        self.caller.may("a backup", Access::Admin)?;
        let Store::Sqlite(_, path) = &*self.store else {
            return Err(Error::new(Code::Invalid, "a PostgreSQL fleet is not one file")
                .hint("use pg_dump; after restoring it, run: fence call admin/restored '{}'"));
        };
        let (from, to) = (path.clone(), to.to_owned());
        let copying = tokio::task::spawn_blocking(move || crate::db::sqlite::copy_backup(&from, &to));
        copying.await.map_err(Error::internal)?
    }

    /// Other nodes on PostgreSQL are told of what is committed here a moment later. A process that is about to end waits
    /// for that here; else they find out by themselves, after some seconds.
    pub fn flush(&self) -> BoxFuture<'_, ()> {
        match &*self.store {
            Store::Postgres(db) => Box::pin(db.flush()),
            Store::Sqlite(..) => Box::pin(std::future::ready(())),
        }
    }

    /// What this process has asked of the database since it opened the fleet.
    pub fn stats(&self) -> Counts {
        Counts { waiting: self.waiters.count(), ..self.stats.read() }
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

/// Counters of one open fleet.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    statements: AtomicU64,
    round_trips: AtomicU64,
    batches: AtomicU64,
    batched: AtomicU64,
    batch_sizes: [AtomicU64; 9],
    notices: AtomicU64,
}

/// What this process has asked of the database since it opened the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub statements: u64,
    /// PostgreSQL: answers waited for.
    pub round_trips: u64,
    /// SQLite: transactions of the writer, and the calls in them.
    pub batches: u64,
    pub batched: u64,
    /// How many of those transactions had at most 1, 2, 4, … 256 calls, and more than the one before.
    pub batch_sizes: [u64; 9],
    /// PostgreSQL: how often other nodes were told that there is news.
    pub notices: u64,
    /// Calls that have looked, and are waiting now.
    pub waiting: u64,
}

impl Stats {
    pub fn statement(&self) {
        self.statements.fetch_add(1, Ordering::Relaxed);
    }
    pub fn round_trip(&self) {
        self.round_trips.fetch_add(1, Ordering::Relaxed);
    }
    pub fn batch(&self, calls: u64) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.batched.fetch_add(calls, Ordering::Relaxed);
        let size = calls.max(1).next_power_of_two().trailing_zeros() as usize;
        self.batch_sizes[size.min(self.batch_sizes.len() - 1)].fetch_add(1, Ordering::Relaxed);
    }
    pub fn notice(&self) {
        self.notices.fetch_add(1, Ordering::Relaxed);
    }
    fn read(&self) -> Counts {
        Counts {
            statements: self.statements.load(Ordering::Relaxed),
            round_trips: self.round_trips.load(Ordering::Relaxed),
            batches: self.batches.load(Ordering::Relaxed),
            batched: self.batched.load(Ordering::Relaxed),
            batch_sizes: self.batch_sizes.each_ref().map(|size| size.load(Ordering::Relaxed)),
            notices: self.notices.load(Ordering::Relaxed),
            waiting: 0,
        }
    }
}
