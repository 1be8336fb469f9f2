//! The embedded database: one writer thread with group commit, and separate connections for reads.
//!
//! The writer takes the queued calls, opens one transaction, runs each call in a savepoint of its own, commits once,
//! and then replies to all. No caller gets a reply before its commit is on the disk.

mod connection;
mod contention;
mod files;
mod news;
mod open;
mod opened_file;
mod readers;
mod write_queue;

use super::{
    Answer, BoxFuture, Db, Due, News, Notes, Opening, Outcome, PreludeWork, Script, Stmt, Tx,
    in_use::uncounted, options::Options, stats::Stats,
};
use crate::{
    caller::Caller,
    clock::{Deadline, Millis, Ratchet, Time},
    error::{Code, Error, Result},
    sync::lock,
};
pub(crate) use connection::{SqliteConnection, sqlite_error};
use contention::Contention;
pub(crate) use contention::WaitMark;
use news::LogWatch;
pub(crate) use open::copy_backup;
use opened_file::OpenedFile;
use readers::Readers;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering},
        mpsc,
    },
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::sync::oneshot;
use write_queue::WriteQueue;

/// The most calls of one batch. One fsync covers the batch; past this number the last caller waits longer than it
/// saves.
const BATCH_MAX: usize = 256;
/// The longest turn of one process while others wait, and how long it waits for its next call before it ends its turn:
/// passing the turn on costs more than a commit.
const TURN: Duration = Duration::from_millis(10);
const LINGER: Duration = Duration::from_micros(200);
/// The clock is stored when the wall clock has moved this far ahead of the stored one.
const CLOCK_STEP_MS: i64 = 50;
/// The time is stored this often, so that gaps without writes are noticed and do not count as time in use.
const STORE_TIME_EVERY: Millis = Millis::minutes(1);

#[derive(Debug)]
pub(crate) struct Sqlite {
    jobs: mpsc::Sender<Job>,
    readers: Arc<Readers>,
    log_watch: Arc<Mutex<LogWatch>>,
    pub contention: Contention,
    options: Options,
}

/// Runs a call inside the batch, and returns its reply, which is sent when the result of the commit is known.
type Job = Box<dyn FnOnce(&mut Batch<'_>) -> Option<Reply> + Send>;
type Reply = Box<dyn FnOnce(&Result<()>) + Send>;

impl Sqlite {
    pub fn open(path: &Path, options: &Options, stats: Arc<Stats>, due: &'static str) -> Result<Self> {
        let conn = open::open(path, options)?;
        let opened_file = Arc::new(OpenedFile::of(path)?);
        let write_queue = WriteQueue::open(path)?;
        let contention = Contention::open(path)?;
        let readers = Arc::new(Readers::new(path, opened_file.clone(), options, stats.clone(), due));
        let log_watch = Arc::new(Mutex::new(LogWatch::new(path, opened_file.clone(), stats.clone())));
        let (jobs, queue) = mpsc::channel();
        let writer = Writer {
            conn: SqliteConnection::new(conn, stats, due),
            opened_file,
            write_queue,
            ratchet: Ratchet::default(),
            resets: 0,
            boot: options.clock.boot(),
            wal: path
                .with_file_name(format!("{}-wal", path.file_name().unwrap_or_default().to_string_lossy())),
            wal_threshold: options.wal_limit,
            readers: readers.clone(),
            options: options.clone(),
        };
        std::thread::Builder::new()
            .name("fence-writer".into())
            .spawn(move || writer.run(&queue))
            .map_err(|e| Error::unavailable(format!("cannot start the writer thread: {e}")))?;
        Ok(Self { jobs, readers, log_watch, contention, options: options.clone() })
    }

    pub async fn write(&self, script: Arc<dyn Script>) -> Outcome {
        let (answer, answered) = oneshot::channel();
        let start = Arc::new(Start::default());
        let ours = start.clone();
        let job: Job = Box::new(move |batch| {
            // Skip a call whose caller gave up or hung up before it began.
            if answer.is_closed() || !start.begin() {
                return None;
            }
            let outcome = batch.perform(&*script).unwrap_or_else(Outcome::from);
            Some(Box::new(move |commit: &Result<()>| {
                let _ = answer.send(match commit {
                    Ok(()) => outcome,
                    Err(e) => e.clone().into(),
                });
            }))
        });
        let stopped = || {
            Outcome::from(
                Error::unavailable("the writer thread has stopped")
                    .hint("open the fleet again; acknowledged calls are safe"),
            )
        };
        if self.jobs.send(job).is_err() {
            return stopped();
        }
        match tokio::time::timeout(self.options.call_limit, answered).await {
            Ok(answer) => answer.unwrap_or_else(|_| stopped()),
            Err(_) if ours.give_up() => Error::unavailable(format!(
                "the database was busy for {:?}: another process is holding it",
                self.options.call_limit
            ))
            .hint("nothing was changed; find the process that holds the file, or try again")
            .into(),
            Err(_) => Error::new(Code::OutcomeUnknown, "the disk did not answer in time")
                .hint("ask again with the same request id: it is done at most once")
                .into(),
        }
    }

    pub async fn read(&self, script: Arc<dyn Script>) -> Outcome {
        self.readers.clone().read(self.options.clone(), script).await
    }

    /// The news in the log since the last question.
    pub async fn news(&self) -> Result<News> {
        let log_watch = self.log_watch.clone();
        let asking = tokio::task::spawn_blocking(move || lock(&log_watch).news());
        asking.await.map_err(Error::internal)?
    }
}

/// Decides whether a call begins or its caller gives up, whichever is first.
#[derive(Debug, Default)]
struct Start(AtomicU8);

impl Start {
    fn begin(&self) -> bool {
        self.0.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
    fn give_up(&self) -> bool {
        self.0.compare_exchange(0, 2, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

#[derive(Debug)]
struct Writer {
    conn: SqliteConnection,
    opened_file: Arc<OpenedFile>,
    write_queue: WriteQueue,
    ratchet: Ratchet,
    /// The number of clock resets when the ratchet last moved.
    resets: i64,
    boot: Option<String>,
    wal: PathBuf,
    /// The size of the write-ahead log at which to truncate it.
    wal_threshold: u64,
    readers: Arc<Readers>,
    options: Options,
}

impl Writer {
    fn run(mut self, queue: &mpsc::Receiver<Job>) {
        while let Ok(first) = queue.recv() {
            self.turn(first, queue);
        }
    }

    /// One turn among the processes on this file: a batch, and more batches while calls keep coming.
    fn turn(&mut self, first: Job, queue: &mpsc::Receiver<Job>) {
        let turn = self.write_queue.take_turn();
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
            self.truncate_wal();
            if turn.is_ok() && !end.is_over() {
                next = queue.recv_timeout(LINGER).ok();
            }
        }
    }

    /// Runs nothing, and replies with the error.
    fn refuse(&mut self, job: Job, error: &Error, replies: &mut Vec<Reply>) -> Result<()> {
        let broken = Some(error.clone());
        replies.extend(job(&mut Batch { broken, ..Batch::new(&mut self.conn) }));
        Err(error.clone())
    }

    /// One transaction. Every call in it gets the error that this returns; the error of a refused op is that op's
    /// alone.
    fn batch(&mut self, first: Job, queue: &mpsc::Receiver<Job>, replies: &mut Vec<Reply>) -> Result<()> {
        let opened = self.conn.exec("begin immediate").and_then(|()| self.open_batch());
        let mut batch = Batch::new(&mut self.conn);
        match opened {
            Ok((now, ahead, due)) => (batch.now, batch.ahead, batch.due) = (now, ahead, due),
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
            None => self.conn.commit(),
        };
        if outcome.is_err() && !self.conn.raw.is_autocommit() {
            let _ = self.conn.exec("rollback");
        }
        self.conn.stats.batch(taken as u64);
        outcome
    }

    /// The time, read under the lock, how far it is ahead of the wall clock, and the next deadline. The time never goes
    /// back, even if the wall clock was set back.
    fn open_batch(&mut self) -> Result<(Time, Millis, Due)> {
        self.opened_file.check_path()?;
        let clock = &self.options.clock;
        let (wall, ticks) = (clock.wall(false).unwrap_or(Time(0)), clock.ticks());
        let stored = self.conn.stored_clock(&self.opened_file, self.boot.as_deref())?;
        if std::mem::replace(&mut self.resets, stored.resets) != stored.resets {
            self.ratchet = Ratchet::default();
        }
        self.ratchet.ahead = self.ratchet.ahead.max(stored.ahead);
        let now = self.ratchet.now(wall, ticks);
        let now = stored.least.map_or(now, |least| now.max(least));
        let ahead = now.0 - ticks;
        self.ratchet.ahead = Some(ahead);
        let stepped = stored.ahead.is_none_or(|stored| ahead - stored >= CLOCK_STEP_MS);
        if stepped || stored.time.is_none_or(|time| now.since(time) >= STORE_TIME_EVERY) {
            if let Some(ms) = uncounted(stored.time, now) {
                let gap = "insert into gap(at, ms) values (?1, ?2) on conflict do nothing";
                self.conn.run(&Stmt::write(gap, crate::params![now, ms]))?;
            }
            self.conn.run(&Stmt::write(
                "update fleet set boot = ?1, ahead_ms = ?2, seen_at = ?3",
                crate::params![self.boot.as_deref(), ahead, now],
            ))?;
        }
        Ok((now, now.since(wall), self.conn.read_due()?))
    }

    /// Truncates the write-ahead log past its limit. Reads that always overlap would keep SQLite from reusing it, so
    /// new reads here wait until the current ones are over (each has a time limit) and the log is truncated.
    ///
    /// Another program's read may last longer. Waiting for it after every batch would stop the fleet, so the next
    /// attempt is when the log has grown by as much again.
    fn truncate_wal(&mut self) {
        let Ok(size) = std::fs::metadata(&self.wal).map(|wal| wal.len()) else { return };
        if size <= self.wal_threshold {
            return;
        }
        let _no_reads = self.readers.pause();
        let conn = &self.conn.raw;
        let _ = conn.busy_timeout(self.options.read_limit.min(BUSY));
        let blocked = conn.query_row("pragma wal_checkpoint(truncate)", [], |row| row.get::<_, bool>(0));
        let _ = conn.busy_timeout(BUSY);
        self.wal_threshold = match blocked {
            Ok(false) => self.options.wal_limit,
            blocked => {
                tracing::debug!("the write-ahead log has {size} bytes and cannot be truncated: {blocked:?}");
                size + self.options.wal_limit
            }
        };
    }
}

/// The ops of one transaction.
#[derive(Debug)]
struct Batch<'a> {
    conn: &'a mut SqliteConnection,
    now: Time,
    /// How far `now` is ahead of this machine's clock.
    ahead: Millis,
    due: Due,
    /// How many things expiry changed in this transaction; `None` if it has not run since a deadline last changed.
    expired: Option<u64>,
    /// The error that ends this batch: nothing more runs in it, and all of it is rolled back.
    broken: Option<Error>,
}

impl<'a> Batch<'a> {
    fn new(conn: &'a mut SqliteConnection) -> Self {
        let (now, ahead, due) = (Time(0), Millis(0), Due::default());
        Self { conn, now, ahead, due, expired: None, broken: None }
    }

    /// Runs the call's prelude, if it has work to do, and then the call's own work.
    fn perform(&mut self, script: &dyn Script) -> Result<Outcome> {
        let mut opening = self.opening(script)?;
        let PreludeWork { renew, expire } = script.prelude_work(&opening, self.now)?;
        let expire_now = expire && self.expired.is_none();
        if renew || expire_now {
            if renew {
                self.step(opening, script.caller(), script, |script, tx| script.renew(tx))?.0?;
            }
            if expire_now {
                self.expire(script);
            }
            self.read_due()?;
            opening = self.opening(script)?;
        }
        opening.expired = self.expired.filter(|_| expire).unwrap_or(0);
        let (answer, notes) = self.step(opening, script.caller(), script, |script, tx| script.run(tx))?;
        Ok(Outcome { answer, notes })
    }

    /// Runs one batch of expiry for all calls of this transaction. The rest waits for the next transaction, so that
    /// other calls run in between. A failure does not fail the caller: the next call tries again.
    fn expire(&mut self, script: &dyn Script) {
        let expired =
            self.step(Opening::default(), &Caller::default(), script, |script, tx| script.expire(tx));
        self.expired = Some(expired.and_then(|(expired, _)| expired).unwrap_or_else(|error| {
            tracing::warn!("a batch of expiry failed: {error}");
            0
        }));
    }

    /// Runs one step in a savepoint of its own. The outer error is the batch's, the inner one the step's own.
    fn step<T>(
        &mut self,
        opening: Opening,
        caller: &Caller,
        script: &dyn Script,
        work: impl for<'t, 'd> FnOnce(&'t dyn Script, &'t mut Tx<'d>) -> BoxFuture<'t, Result<T>>,
    ) -> Result<(Result<T>, Notes)> {
        self.exec("savepoint op")?;
        let mut tx = Tx::new(Db::Sqlite(self.conn), self.now, caller.clone(), opening);
        let result = now_or_never(|| work(script, &mut tx));
        let notes = tx.into_notes();
        self.check_still_open()?;
        if result.is_err() {
            self.exec_or_break("rollback to savepoint op")?;
        }
        self.exec_or_break("release savepoint op")?;
        if result.is_ok() {
            // Later calls in this transaction get the corrected time.
            let back = notes.clock_set_back;
            (self.now.0, self.ahead.0) = (self.now.0 - back.0, self.ahead.0 - back.0);
        }
        if notes.due_changed {
            self.read_due()?;
            self.expired = None;
        }
        Ok((result, notes))
    }

    fn read_due(&mut self) -> Result<()> {
        if let Some(e) = &self.broken {
            return Err(e.clone());
        }
        self.due = self.conn.read_due()?;
        Ok(())
    }

    fn opening(&mut self, script: &dyn Script) -> Result<Opening> {
        let answers = script.reads().iter().map(|statement| self.run(statement)).collect::<Result<_>>()?;
        Ok(Opening { ahead: self.ahead, ..script.opening(Some(self.due.clone()), answers)? })
    }

    fn run(&mut self, statement: &Stmt) -> Result<Answer> {
        if let Some(e) = &self.broken {
            return Err(e.clone());
        }
        self.conn.run(statement)
    }

    fn exec(&mut self, sql: &'static str) -> Result<()> {
        self.run(&Stmt::read(sql, vec![])).map(drop)
    }

    /// Runs a statement that ends a savepoint. If it fails the whole batch is rolled back: a refused op must not be
    /// committed with the others.
    fn exec_or_break(&mut self, sql: &'static str) -> Result<()> {
        let done = self.exec(sql);
        if let Err(e) = &done {
            self.broken = Some(e.clone());
        }
        done
    }

    /// A full disk ends the whole transaction without an error; later ops would then commit one by one.
    fn check_still_open(&mut self) -> Result<()> {
        if self.conn.raw.is_autocommit() {
            let error = Error::unavailable("the database ended the transaction: the disk is full or failing")
                .hint("nothing was changed; make room on the disk and try again");
            self.broken = Some(error.clone());
            return Err(error);
        }
        Ok(())
    }
}

/// Polls the work once. On SQLite no await is pending, so one poll finishes an op. An op that panics or pends fails
/// alone, even if it panics before there is a future to poll.
fn now_or_never<'f, T>(work: impl FnOnce() -> BoxFuture<'f, Result<T>>) -> Result<T> {
    let polled =
        catch_unwind(AssertUnwindSafe(|| work().as_mut().poll(&mut Context::from_waker(Waker::noop()))));
    match polled {
        Ok(Poll::Ready(result)) => result,
        Ok(Poll::Pending) => Err(Error::internal("the op waited for something other than its transaction")
            .hint("prepare everything it needs before the transaction begins")),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Err(Error::internal(format!("the op panicked: {text}")))
        }
    }
}

/// How long SQLite waits for the lock of a program that does not use the write queue.
pub(crate) const BUSY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::{super::AnyReply, *};

    const DUE: &str = "select floor, null as unreleased from fleet";

    fn writer(dir: &Path) -> Sqlite {
        Sqlite::open(&dir.join("f.db"), &Options::default(), Arc::default(), DUE).unwrap()
    }

    /// A script without a prelude.
    struct Plain<F>(F, Caller);

    impl<F> Script for Plain<F>
    where
        F: for<'t, 'd> Fn(&'t mut Tx<'d>) -> BoxFuture<'t, Result<i64>> + Send + Sync,
    {
        fn caller(&self) -> &Caller {
            &self.1
        }
        fn reads(&self) -> Vec<Stmt> {
            Vec::new()
        }
        fn reads_due(&self) -> bool {
            false
        }
        fn opening(&self, _: Option<Due>, _: Vec<Answer>) -> Result<Opening> {
            Ok(Opening::default())
        }
        fn prelude_work(&self, _: &Opening, _: Time) -> Result<PreludeWork> {
            Ok(PreludeWork::default())
        }
        fn renew<'t>(&'t self, _: &'t mut Tx<'_>) -> BoxFuture<'t, Result<()>> {
            Box::pin(async { Ok(()) })
        }
        fn expire<'t>(&'t self, _: &'t mut Tx<'_>) -> BoxFuture<'t, Result<u64>> {
            Box::pin(async { Ok(0) })
        }
        fn run<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<AnyReply>> {
            let run = (self.0)(tx);
            Box::pin(async move { Ok(Box::new(run.await?) as AnyReply) })
        }
        fn declares_restore(&self) -> bool {
            false
        }
    }

    fn script<F>(work: F) -> Arc<dyn Script>
    where
        F: for<'t, 'd> Fn(&'t mut Tx<'d>) -> BoxFuture<'t, Result<i64>> + Send + Sync + 'static,
    {
        Arc::new(Plain(work, Caller::default()))
    }

    #[tokio::test]
    async fn when_the_writer_dies_callers_get_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let sqlite = writer(dir.path());
        // The reply panics outside of any op, so nothing catches the panic, and the thread ends.
        sqlite.jobs.send(Box::new(|_| Some(Box::new(|_| panic!("the writer dies"))))).unwrap();
        for _ in 0..3 {
            let nothing = script(|_| Box::pin(async { Ok(0) }));
            let error = sqlite.write(nothing).await.answer.expect_err("the writer is dead");
            assert_eq!(error.code(), Code::Unavailable);
            assert!(error.message().contains("writer thread has stopped"), "{error}");
        }
    }

    #[tokio::test]
    async fn an_op_that_panics_or_pends_fails_alone() {
        let dir = tempfile::tempdir().unwrap();
        let sqlite = Arc::new(writer(dir.path()));
        let write = |script: Arc<dyn Script>| {
            let sqlite = sqlite.clone();
            async move { sqlite.write(script).await.answer.map(|reply| *reply.downcast::<i64>().unwrap()) }
        };
        let counts = script(|tx| {
            Box::pin(async move {
                tx.execute("update fleet set floor = floor + 1", vec![]).await?;
                tx.query("select floor from fleet", vec![]).await?[0].get::<i64>("floor")
            })
        });
        let panics = script(|tx| {
            Box::pin(async move {
                tx.execute("update fleet set floor = 1000", vec![]).await?;
                panic!("boom")
            })
        });
        let pends = script(|tx| {
            Box::pin(async move {
                tx.execute("update fleet set floor = 2000", vec![]).await?;
                tokio::task::yield_now().await;
                Ok(0_i64)
            })
        });
        let (a, b, c, d) = tokio::join!(write(counts.clone()), write(panics), write(pends), write(counts));
        assert_eq!(a.unwrap(), 1);
        assert!(b.unwrap_err().message().contains("boom"));
        assert!(c.unwrap_err().message().contains("waited"));
        assert_eq!(d.unwrap(), 2);
    }
}
