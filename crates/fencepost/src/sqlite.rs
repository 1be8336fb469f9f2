//! The embedded database: one writer thread with group commit, and readers of their own.
//!
//! The writer takes what is queued, opens one transaction, runs each op in its own savepoint, commits once,
//! and only then replies. Nobody is told "done" before the disk has it.

mod open;
mod readers;
mod turnstile;
mod watch;

use crate::{
    admin::about::{Database, Setting},
    before::{Before, Due, Opening, outlast},
    clock::{Deadline, Ratchet, Time},
    error::{Code, Error, Result},
    fleet::{Options, Stats, Work},
    tx::{Answer, BoxFuture, Caller, Db, Place, Row, Stmt, Tx, Value},
    wait::News,
};
pub(crate) use open::copy_backup;
use readers::Readers;
use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
        mpsc,
    },
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::sync::oneshot;
use turnstile::Turnstile;
use watch::Watch;

/// One fsync covers the batch; past this the last caller waits longer than it saves.
const BATCH_MAX: usize = 256;
/// How long one process may go on while others wait, and how long it waits for its next call before it lets
/// them: handing over costs more than a commit.
const TURN: Duration = Duration::from_millis(10);
const LINGER: Duration = Duration::from_micros(200);
/// A clock row is written when the wall has moved this far ahead of what is stored.
const CLOCK_STEP_MS: i64 = 50;

#[derive(Debug)]
pub(crate) struct Sqlite {
    jobs: mpsc::Sender<Job>,
    readers: Arc<Readers>,
    watch: Arc<Mutex<Watch>>,
    options: Options,
}

/// Runs inside the batch; gives back what to do once the commit is known.
type Job = Box<dyn FnOnce(&mut Batch<'_>) -> Option<Reply> + Send>;
type Reply = Box<dyn FnOnce(&Result<()>) + Send>;

impl Sqlite {
    pub fn open(path: &Path, options: &Options, stats: Arc<Stats>) -> Result<Self> {
        let conn = open::open(path, options)?;
        let turnstile = Turnstile::open(path)?;
        let readers = Arc::new(Readers::new(path, options, stats.clone()));
        let watch = Arc::new(Mutex::new(Watch::new(path, stats.clone())));
        let (jobs, queue) = mpsc::channel();
        let writer = Writer {
            lite: Lite { conn, columns: HashMap::new(), stats },
            turnstile,
            ratchet: Ratchet::default(),
            boot: options.clock.boot(),
            wal: path
                .with_file_name(format!("{}-wal", path.file_name().unwrap_or_default().to_string_lossy())),
            wal_due: options.wal_limit,
            readers: readers.clone(),
            options: options.clone(),
        };
        std::thread::Builder::new()
            .name("fence-writer".into())
            .spawn(move || writer.run(&queue))
            .map_err(|e| Error::unavailable(format!("cannot start the writer thread: {e}")))?;
        Ok(Self { jobs, readers, watch, options: options.clone() })
    }

    pub async fn write<T: Send + 'static>(
        &self,
        before: Before,
        caller: Caller,
        place: Place,
        work: Work<T>,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let turn = Arc::new(Turn::default());
        let ours = turn.clone();
        let job: Job = Box::new(move |batch| {
            // Whoever gave up, or hung up, before the op began wants nothing done.
            if answer.is_closed() || !turn.begin() {
                return None;
            }
            let result = batch.perform(&before, &caller, place, &work);
            Some(Box::new(move |commit: &Result<()>| {
                let _ = answer.send(match commit {
                    Ok(()) => result,
                    Err(e) => Err(e.clone()),
                });
            }))
        });
        let stopped = || {
            Error::unavailable("the writer thread has stopped")
                .hint("open the fleet again; what was acknowledged is safe")
        };
        self.jobs.send(job).map_err(|_| stopped())?;
        match tokio::time::timeout(self.options.call_limit, answered).await {
            Ok(answer) => answer.map_err(|_| stopped())?,
            Err(_) if ours.give_up() => Err(Error::unavailable(format!(
                "the database was busy for {:?}: another process is holding it",
                self.options.call_limit
            ))
            .hint("nothing was changed; find the process that holds the file, or try again")),
            Err(_) => Err(Error::new(Code::OutcomeUnknown, "the disk did not answer in time")
                .hint("ask again with the same request id: it is done at most once")),
        }
    }

    pub async fn read<T: Send + 'static>(&self, caller: Caller, work: Work<T>) -> Result<T> {
        self.readers.clone().read(self.options.clone(), caller, work).await
    }

    /// Has the log grown since this was last asked? (The first time: perhaps.)
    pub async fn news(&self) -> Result<News> {
        let watch = self.watch.clone();
        let asking =
            tokio::task::spawn_blocking(move || watch.lock().unwrap_or_else(PoisonError::into_inner).news());
        asking.await.map_err(Error::internal)?
    }
}

/// Begun or given up, whichever is first.
#[derive(Debug, Default)]
struct Turn(AtomicU8);

impl Turn {
    fn begin(&self) -> bool {
        self.0.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
    fn give_up(&self) -> bool {
        self.0.compare_exchange(0, 2, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

#[derive(Debug)]
struct Writer {
    lite: Lite,
    turnstile: Turnstile,
    ratchet: Ratchet,
    boot: Option<String>,
    wal: PathBuf,
    /// The size of the log at which to start it anew.
    wal_due: u64,
    readers: Arc<Readers>,
    options: Options,
}

impl Writer {
    fn run(mut self, queue: &mpsc::Receiver<Job>) {
        while let Ok(first) = queue.recv() {
            self.turn(first, queue);
        }
    }

    /// One turn among the processes on this file: a batch, and more while calls keep coming.
    fn turn(&mut self, first: Job, queue: &mpsc::Receiver<Job>) {
        let turn = self.turnstile.enter();
        let end = Deadline::after(TURN);
        let mut next = Some(first);
        while let Some(job) = next.take() {
            let mut replies: Vec<Reply> = Vec::new();
            let outcome = match &turn {
                Ok(_) => self.batch(job, queue, &mut replies),
                Err(e) => self.refuse(job, e, &mut replies),
            };
            for reply in replies {
                reply(&outcome);
            }
            self.bound_the_wal();
            if turn.is_ok() && !end.is_over() {
                next = queue.recv_timeout(LINGER).ok();
            }
        }
    }

    /// Nothing runs; whoever asked is told why.
    fn refuse(&mut self, job: Job, error: &Error, replies: &mut Vec<Reply>) -> Result<()> {
        let broken = Some(error.clone());
        replies.extend(job(&mut Batch { lite: &mut self.lite, now: Time(0), due: Due::default(), broken }));
        Err(error.clone())
    }

    /// One transaction. An error from here reaches everyone in it; a refused op's error is its own.
    fn batch(&mut self, first: Job, queue: &mpsc::Receiver<Job>, replies: &mut Vec<Reply>) -> Result<()> {
        let opened = self.lite.exec("begin immediate").and_then(|()| self.open_batch());
        let mut batch = Batch { lite: &mut self.lite, now: Time(0), due: Due::default(), broken: None };
        match opened {
            Ok((now, due)) => (batch.now, batch.due) = (now, due),
            Err(e) => batch.broken = Some(e),
        }
        let mut taken = 0;
        let mut next = Some(first);
        while let Some(job) = next.take() {
            replies.extend(job(&mut batch));
            taken += 1;
            if taken < BATCH_MAX && batch.broken.is_none() {
                next = queue.try_recv().ok();
            }
        }
        let outcome = match batch.broken.take() {
            Some(e) => Err(e),
            None => self.lite.commit(),
        };
        if outcome.is_err() && !self.lite.conn.is_autocommit() {
            let _ = self.lite.exec("rollback");
        }
        self.lite.stats.batch(taken as u64);
        outcome
    }

    /// `now`, once the lock is ours, and what is due. Time never goes back, whoever set the wall clock.
    fn open_batch(&mut self) -> Result<(Time, Due)> {
        let clock = &self.options.clock;
        let (wall, ticks) = (clock.wall(false).unwrap_or(Time(0)), clock.ticks());
        let stored = self.lite.stored_clock(self.boot.as_deref())?;
        self.ratchet.ahead = self.ratchet.ahead.max(stored.ahead);
        let now = self.ratchet.now(wall, ticks);
        let now = stored.least.map_or(now, |least| now.max(least));
        let ahead = now.0 - ticks;
        self.ratchet.ahead = Some(ahead);
        if stored.ahead.is_none_or(|stored| ahead - stored >= CLOCK_STEP_MS) {
            self.lite.run(&Stmt::new(
                "update fleet set boot = ?1, ahead_ms = ?2, seen_at = ?3",
                crate::params![self.boot.as_deref(), ahead, now],
            ))?;
        }
        let due = Due::read(&self.lite.run(&Due::statement())?)?;
        Ok((now, due))
    }

    /// Readers that overlap for ever would keep SQLite from starting the log anew. Past the limit, new reads
    /// here wait until those under way are over (each has a time limit) and the log is truncated.
    ///
    /// Another program's reader may not be over by then. Waiting for it again after every batch would bring the
    /// fleet to a stop, so the next try is when the log has grown by as much again.
    fn bound_the_wal(&mut self) {
        let Ok(size) = std::fs::metadata(&self.wal).map(|wal| wal.len()) else { return };
        if size <= self.wal_due {
            return;
        }
        let _no_reads = self.readers.pause();
        let conn = &self.lite.conn;
        let _ = conn.busy_timeout(self.options.read_limit.min(BUSY));
        let blocked = conn.query_row("pragma wal_checkpoint(truncate)", [], |row| row.get::<_, bool>(0));
        let _ = conn.busy_timeout(BUSY);
        self.wal_due = match blocked {
            Ok(false) => self.options.wal_limit,
            blocked => {
                tracing::debug!("the log has {size} bytes and cannot start anew: {blocked:?}");
                size + self.options.wal_limit
            }
        };
    }
}

/// The ops of one transaction.
#[derive(Debug)]
struct Batch<'a> {
    lite: &'a mut Lite,
    now: Time,
    due: Due,
    /// Why nothing more may run in this batch, and nothing of it counts.
    broken: Option<Error>,
}

impl Batch<'_> {
    /// Does what must outlast a refusal, then the op; a refused op whose wish the dead may hold looks again.
    fn perform<T>(&mut self, before: &Before, caller: &Caller, place: Place, work: &Work<T>) -> Result<T> {
        loop {
            let (opening, changed) = self.outlast(before, caller)?;
            let result = self.op(opening, caller, place, |tx| work(tx));
            let empty = result.as_ref().is_err_and(|e| e.code().is_nothing_to_take());
            if !(empty && changed > 0 && before.settles() && self.due.is_due(self.now)) {
                return result;
            }
        }
    }

    fn outlast(&mut self, before: &Before, caller: &Caller) -> Result<(Opening, u64)> {
        let opening = self.opening(before)?;
        let todo = before.todo(&opening, caller, self.now)?;
        if todo.is_empty() {
            return Ok((opening, 0));
        }
        let todo = Arc::new(todo);
        let changed = self.op(opening, caller, Place::Own, |tx| {
            let todo = todo.clone();
            Box::pin(async move { outlast(tx, &todo).await })
        })?;
        self.due = Due::read(&self.run(&Due::statement())?)?;
        Ok((self.opening(before)?, changed))
    }

    /// One op in its own savepoint.
    fn op<T>(
        &mut self,
        opening: Opening,
        caller: &Caller,
        place: Place,
        work: impl for<'t, 'd> Fn(&'t mut Tx<'d>) -> BoxFuture<'t, Result<T>>,
    ) -> Result<T> {
        self.exec("savepoint op")?;
        let mut tx = Tx::new(Db::Sqlite(self.lite), self.now, caller.clone(), opening, place);
        let result = now_or_never(|| work(&mut tx));
        let stirred = tx.stirred;
        self.still_open()?;
        if result.is_err() {
            self.must("rollback to savepoint op")?;
        }
        self.must("release savepoint op")?;
        if stirred {
            self.due = Due::read(&self.run(&Due::statement())?)?;
        }
        result
    }

    fn opening(&mut self, before: &Before) -> Result<Opening> {
        let answers =
            before.statements().iter().map(|statement| self.run(statement)).collect::<Result<_>>()?;
        before.read(self.due.clone(), answers)
    }

    fn run(&mut self, statement: &Stmt) -> Result<Answer> {
        if let Some(e) = &self.broken {
            return Err(e.clone());
        }
        self.lite.run(statement)
    }

    fn exec(&mut self, sql: &'static str) -> Result<()> {
        self.run(&Stmt::new(sql, vec![])).map(drop)
    }

    /// What cannot be undone alone is undone with the batch: a refused op must not be committed by the others.
    fn must(&mut self, sql: &'static str) -> Result<()> {
        let done = self.exec(sql);
        if let Err(e) = &done {
            self.broken = Some(e.clone());
        }
        done
    }

    /// A full disk ends the whole transaction silently; later ops would then commit one by one.
    fn still_open(&mut self) -> Result<()> {
        if self.lite.conn.is_autocommit() {
            let error = Error::unavailable("the database ended the transaction: the disk is full or failing")
                .hint("nothing was changed; make room on the disk and try again");
            self.broken = Some(error.clone());
            return Err(error);
        }
        Ok(())
    }
}

/// On SQLite no await pends, so one poll finishes the op. One that panics or pends fails alone, also if it
/// panics before there is a future to poll.
fn now_or_never<'f, T>(work: impl FnOnce() -> BoxFuture<'f, Result<T>>) -> Result<T> {
    let polled =
        catch_unwind(AssertUnwindSafe(|| work().as_mut().poll(&mut Context::from_waker(Waker::noop()))));
    match polled {
        Ok(Poll::Ready(result)) => result,
        Ok(Poll::Pending) => Err(Error::internal("the op waited for something other than its transaction")
            .hint("prepare what it needs before the transaction begins")),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Err(Error::internal(format!("the op panicked: {text}")))
        }
    }
}

/// A connection, and the names of its statements' columns.
pub(crate) struct Lite {
    conn: rusqlite::Connection,
    /// By the statement's address: they are all `'static`.
    columns: HashMap<(usize, usize), Arc<[Box<str>]>>,
    stats: Arc<Stats>,
}

impl std::fmt::Debug for Lite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lite").finish_non_exhaustive()
    }
}

struct StoredClock {
    /// How far the wall was ahead of this boot's ticks.
    ahead: Option<i64>,
    /// After a boot: no earlier than this.
    least: Option<Time>,
}

impl Lite {
    pub(crate) fn run(&mut self, statement: &Stmt) -> Result<Answer> {
        if statement.only_postgres {
            return Ok(Answer::default());
        }
        self.stats.statement();
        let mut prepared = self.conn.prepare_cached(statement.sql).map_err(sqlite_error)?;
        let width = prepared.column_count();
        let params = rusqlite::params_from_iter(&statement.params);
        if width == 0 {
            let affected = prepared.execute(params).map_err(sqlite_error)? as u64;
            return Ok(Answer { rows: Vec::new(), affected });
        }
        let key = (statement.sql.as_ptr() as usize, statement.sql.len());
        let columns = self
            .columns
            .entry(key)
            .or_insert_with(|| prepared.column_names().map(Into::into).collect())
            .clone();
        let mut found = prepared.query(params).map_err(sqlite_error)?;
        let mut rows = Vec::new();
        while let Some(row) = found.next().map_err(sqlite_error)? {
            let values = (0..width)
                .map(|i| row.get_ref(i).map_err(sqlite_error).and_then(value))
                .collect::<Result<_>>()?;
            rows.push(Row::new(columns.clone(), values));
        }
        let affected = rows.len() as u64;
        Ok(Answer { rows, affected })
    }

    fn exec(&mut self, sql: &'static str) -> Result<()> {
        self.run(&Stmt::new(sql, vec![])).map(drop)
    }

    pub(crate) fn describe(&mut self) -> Result<Database> {
        let answer = self.run(&Stmt::new(
            "select sqlite_version() as version,
               (select user_version from pragma_user_version) as schema_version,
               (select journal_mode from pragma_journal_mode) as journal_mode,
               (select case synchronous when 0 then 'off' when 1 then 'normal' when 2 then 'full' else 'extra' end
                from pragma_synchronous) as synchronous",
            vec![],
        ))?;
        let row = &answer.rows[0];
        Ok(Database {
            kind: "SQLite".into(),
            version: row.get("version")?,
            schema_version: row.get("schema_version")?,
            durability: vec![
                Setting::new("journal_mode", row.get("journal_mode")?, &["wal"]),
                Setting::new("synchronous", row.get("synchronous")?, &["full", "extra"]),
            ],
        })
    }

    /// The quick check takes 0.4 s for 100,000 tasks and this 1.3 s, but it would not see an index that has lost a row, and
    /// then the task is never handed out.
    pub(crate) fn damage(&mut self) -> Result<Vec<String>> {
        let check = "select integrity_check as found from pragma_integrity_check limit 20";
        let found = self.run(&Stmt::new(check, vec![]))?.rows;
        let found = found.iter().map(|row| row.get("found")).collect::<Result<Vec<String>>>()?;
        Ok(found.into_iter().filter(|line| line != "ok").collect())
    }

    /// Without room, nothing was committed. After any other error the commit may have reached the disk.
    fn commit(&mut self) -> Result<()> {
        use rusqlite::ErrorCode as E;
        self.stats.statement();
        let committed = self.conn.prepare_cached("commit").and_then(|mut commit| commit.execute([]));
        match committed {
            Ok(_) => Ok(()),
            Err(e) if matches!(e.sqlite_error_code(), Some(E::DiskFull | E::DatabaseBusy)) => {
                Err(sqlite_error(e))
            }
            Err(e) => Err(Error::new(Code::OutcomeUnknown, sqlite_error(e).message())
                .hint("ask again with the same request id: it is done at most once")),
        }
    }

    fn stored_clock(&mut self, boot: Option<&str>) -> Result<StoredClock> {
        let answer = self.run(&Stmt::new("select boot, ahead_ms, seen_at from fleet", vec![]))?;
        let row = &answer.rows[0];
        let same_boot = boot.is_some() && row.get::<Option<String>>("boot")?.as_deref() == boot;
        let ahead = row.get::<Option<i64>>("ahead_ms")?.filter(|_| same_boot);
        let seen: Option<Time> = row.get("seen_at")?;
        if same_boot {
            return Ok(StoredClock { ahead, least: seen });
        }
        // A new boot, and perhaps a wrong clock: it is no earlier than the last time any run was heard.
        let heard = "select max(expires_at - ttl_ms) as heard_at from run where ended_at is null";
        let heard: Option<Time> = self.run(&Stmt::new(heard, vec![]))?.rows[0].get("heard_at")?;
        Ok(StoredClock { ahead, least: seen.max(heard) })
    }

    fn snapshot(&mut self, options: &Options) -> Result<(Time, Due)> {
        let clock = &options.clock;
        let stored = self.stored_clock(clock.boot().as_deref())?;
        let now = Ratchet { ahead: stored.ahead }.now(clock.wall(false).unwrap_or(Time(0)), clock.ticks());
        let now = stored.least.map_or(now, |least| now.max(least));
        Ok((now, Due::read(&self.run(&Due::statement())?)?))
    }
}

fn value(value: rusqlite::types::ValueRef<'_>) -> Result<Value> {
    use rusqlite::types::ValueRef as V;
    match value {
        V::Null => Ok(Value::Null),
        V::Integer(i) => Ok(Value::Int(i)),
        V::Text(text) => String::from_utf8(text.to_vec()).map(Value::Text).map_err(Error::internal),
        V::Real(_) | V::Blob(_) => Err(Error::internal("a column holds neither a number nor text")),
    }
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        use rusqlite::types::ValueRef as V;
        Ok(rusqlite::types::ToSqlOutput::Borrowed(match self {
            Value::Null => V::Null,
            Value::Int(i) => V::Integer(*i),
            Value::Text(text) => V::Text(text.as_bytes()),
        }))
    }
}

/// What SQLite said, in words that say what to do.
pub(crate) fn sqlite_error(e: rusqlite::Error) -> Error {
    use rusqlite::ErrorCode as E;
    match e.sqlite_error_code() {
        Some(E::DiskFull) => Error::unavailable("the disk, or the limit set for the database, is full")
            .hint("nothing was changed; make room and try again"),
        Some(E::DatabaseBusy | E::DatabaseLocked) => {
            Error::unavailable("another program is holding the database")
                .hint("close what has it open (an sqlite3 shell?) and try again")
        }
        Some(E::ReadOnly | E::PermissionDenied) => Error::unavailable("the database cannot be written")
            .hint("check the permissions of the file and of its directory"),
        Some(E::NotADatabase) => Error::new(Code::Invalid, "the file is not a SQLite database")
            .hint("name another file, or move this one away"),
        Some(E::CannotOpen) => Error::unavailable("the database file cannot be opened")
            .hint("check that its directory exists and can be written"),
        Some(E::OperationInterrupted) => {
            Error::unavailable("the read took longer than the time allowed for it")
                .hint("ask for less at once")
        }
        Some(E::SystemIoFailure) => {
            Error::unavailable(format!("the disk failed: {e}")).hint("check the disk, then try again")
        }
        Some(E::DatabaseCorrupt) => {
            Error::internal(format!("the database file is damaged: {e}")).hint("restore a backup")
        }
        _ => Error::internal(format!("the database failed: {e}")),
    }
}

/// How long SQLite itself waits for a program that does not queue at the turnstile.
pub(crate) const BUSY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(dir: &Path) -> Sqlite {
        Sqlite::open(&dir.join("f.db"), &Options::default(), Arc::default()).unwrap()
    }

    #[tokio::test]
    async fn when_the_writer_dies_callers_get_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let sqlite = writer(dir.path());
        // The reply itself panics: outside any op, so nothing catches it, and the thread ends.
        sqlite.jobs.send(Box::new(|_| Some(Box::new(|_| panic!("the writer dies"))))).unwrap();
        for _ in 0..3 {
            let work: Work<()> = Arc::new(|_| Box::pin(async { Ok(()) }));
            let error = sqlite
                .write(Before::nothing(), Caller::default(), Place::Own, work)
                .await
                .expect_err("the writer is dead");
            assert_eq!(error.code(), Code::Unavailable);
            assert!(error.message().contains("writer thread has stopped"), "{error}");
        }
    }

    #[tokio::test]
    async fn an_op_that_panics_or_pends_fails_alone() {
        let dir = tempfile::tempdir().unwrap();
        let sqlite = Arc::new(writer(dir.path()));
        let write = |work: Work<i64>| {
            let sqlite = sqlite.clone();
            async move { sqlite.write(Before::nothing(), Caller::default(), Place::Own, work).await }
        };
        let counts: Work<i64> = Arc::new(|tx| {
            Box::pin(async move {
                tx.execute("update fleet set floor = floor + 1", vec![]).await?;
                tx.query("select floor from fleet", vec![]).await?[0].get("floor")
            })
        });
        let panics: Work<i64> = Arc::new(|tx| {
            Box::pin(async move {
                tx.execute("update fleet set floor = 1000", vec![]).await?;
                panic!("boom")
            })
        });
        let pends: Work<i64> = Arc::new(|tx| {
            Box::pin(async move {
                tx.execute("update fleet set floor = 2000", vec![]).await?;
                tokio::task::yield_now().await;
                Ok(0)
            })
        });
        let (a, b, c, d) = tokio::join!(write(counts.clone()), write(panics), write(pends), write(counts));
        assert_eq!(a.unwrap(), 1);
        assert!(b.unwrap_err().message().contains("boom"));
        assert!(c.unwrap_err().message().contains("waited"));
        assert_eq!(d.unwrap(), 2);
    }
}
