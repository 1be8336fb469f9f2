//! Many machines on one database: stateless nodes, the database's clock, few round trips.
//!
//! What does not depend on an earlier answer is pipelined: BEGIN, the clock and the op's opening reads are
//! one round trip. What PostgreSQL says may be retried is retried, a bounded number of times. A COMMIT whose
//! answer was lost is `outcome_unknown`, and never retried by itself.

mod notice;
mod numbers;
mod tls;
mod url;
mod watch;

use crate::{
    clock::{Millis, Reading, Time, Watch},
    db::{
        in_use::HOUR,
        migrate::{self, MIGRATIONS},
        tx::{Answer, Caller, Db, Place, Row, Stmt, Tx, Value, to_postgres},
    },
    engine::{
        fleet::{Options, Stats, Work},
        op::AnyReply,
        prelude::{Before, Opening, outlast},
    },
    error::{Code, Error, Result},
    ops::{
        admin::about::{Database, Setting},
        run::sweep::sweep,
    },
    params,
};
use deadpool_postgres::{
    ClientWrapper, Hook, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, Timeouts,
};
use futures_util::{TryStreamExt, future::join_all};
use notice::Notices;
use numbers::{Numbers, Taking};
use std::{
    error::Error as _,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};
use tokio_postgres::{
    error::SqlState,
    types::{IsNull, ToSql, Type, to_sql_checked},
};
pub(crate) use url::Target;

/// Is the row of `fleet` in another cluster or schema than it says? Takes 3 us.
macro_rules! elsewhere {
    () => {
        "coalesce(schema_oid <> quote_ident(current_schema())::regnamespace::oid::bigint, false)
         or coalesce(system <> nullif(current_setting('fencepost.system', true), ''), false)"
    };
}
pub(crate) use elsewhere;

/// Names the cluster, on each new connection: it may lead to another cluster than the last one. Not everybody may read it.
const NAME_THE_CLUSTER: &str = "do $$ begin
    perform set_config('fencepost.system', (select system_identifier::text from pg_control_system()), false);
  exception when insufficient_privilege or undefined_function then null; end $$";

/// A call that met another is tried again for about a second and a half: whoever it met may be on a busy machine.
const TRIES: u32 = 10;
const LONGEST_PAUSE_MS: u64 = 250;
/// What was renewed after it waited longer than this for the run's row is renewed by an old time: the call starts over.
const STALE: Millis = Millis::seconds(2);
/// How far the stored time may be behind, and how long a call takes at most to store it.
const STORE_EVERY: Millis = Millis::seconds(1);
const STORE_LIMIT: Duration = Duration::from_secs(1);
/// Past this many, `join_all` no longer starts its futures in order.
const PIPELINE_MAX: usize = 30;

pub(crate) struct Postgres {
    pool: Pool,
    watch: Mutex<Watch>,
    /// How often the clock had been put right when it was last watched.
    resets: AtomicI64,
    /// A call is storing the time.
    storing: tokio::sync::Mutex<()>,
    /// What was committed when the log was last looked at.
    seen: Mutex<Option<String>>,
    /// It could not be read to its end then.
    held_back: AtomicBool,
    notices: Arc<Notices>,
    numbers: Numbers,
    options: Options,
    stats: Arc<Stats>,
}

impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Postgres").finish_non_exhaustive()
    }
}

/// What is to be done, however many tries it takes.
struct Call {
    before: Before,
    caller: Caller,
    place: Place,
    work: Work,
    /// COMMIT was sent, and not answered yet.
    committing: AtomicBool,
    /// The time, if it is to be stored after this call.
    unstored: Mutex<Option<Unstored>>,
}

/// A time that is to be stored.
#[derive(Clone, Copy)]
struct Unstored {
    now: Time,
    /// How often the clock had been put right: it is not to be set wrong again.
    resets: i64,
}

/// What the first round trip of a transaction says.
struct Opened {
    /// The database's clock.
    wall: Time,
    /// How far the fleet was told to be ahead of it.
    told: Millis,
    /// The latest time that any node has stored.
    stored: Option<Time>,
    /// How often the clock was put right.
    resets: i64,
    /// Of the schema. It stands in the row of `fleet`: a look at `migration` takes 15 us more.
    version: i64,
    /// The fleet is not where it was: this is a copy.
    elsewhere: bool,
    opening: Opening,
}

/// A transaction that has begun.
struct Begun {
    now: Time,
    opening: Opening,
    /// The latest time that any node has stored.
    stored: Option<Time>,
    /// How often the clock was put right.
    resets: i64,
}

impl Postgres {
    pub async fn connect(url: &str, options: &Options, stats: Arc<Stats>) -> Result<Self> {
        let mut target = Target::parse(url)?;
        // A caller that gave up leaves its statement waiting for a lock: the server is to give up on it too. A node that
        // froze, or whose network is gone, leaves its transactions open and its rows locked: the server is to end them.
        // Tables grow faster than the server counts them, and what is asked of them often has an index: left to choose,
        // the server reads them whole (`tests/it/grown.rs`). Where it has to (the one row of `fleet`), it thinks that
        // so dear that it would compile it: 40 ms for 0.02.
        let given = target.config.get_options().unwrap_or_default();
        let (lock, idle) = (options.call_limit.as_millis(), options.idle_limit.as_millis());
        let settings = format!(
            "-c lock_timeout={lock} -c idle_in_transaction_session_timeout={idle} -c tcp_keepalives_idle=10 \
             -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 -c tcp_user_timeout=25000 \
             -c enable_seqscan=off -c jit=off {given}"
        );
        target.config.options(&settings);
        let pool = pool_of(&target, options.connections, options.call_limit)?;
        let schema = target.schema.clone();
        let store = Self {
            numbers: Numbers::new(&target, options)?,
            notices: Notices::new(target, pool.clone(), stats.clone()),
            pool,
            watch: Mutex::default(),
            resets: AtomicI64::new(0),
            storing: tokio::sync::Mutex::default(),
            seen: Mutex::default(),
            held_back: AtomicBool::new(false),
            options: options.clone(),
            stats,
        };
        store.migrate(&schema, options.schema_version.unwrap_or(migrate::latest())).await?;
        Ok(store)
    }

    pub async fn write(&self, before: Before, caller: Caller, place: Place, work: Work) -> Result<AnyReply> {
        let call = Call {
            before,
            caller,
            place,
            work,
            committing: AtomicBool::new(false),
            unstored: Mutex::default(),
        };
        let limit = self.options.call_limit;
        let done = tokio::time::timeout(limit, self.tries(&call)).await;
        let unstored = call.unstored.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(unstored) = unstored {
            self.store(unstored).await;
        }
        match done {
            Ok(result) => result,
            // Its connection was closed with it, so what was not being committed is rolled back.
            Err(_) if !call.committing.load(Ordering::SeqCst) => {
                Err(Error::unavailable(format!("PostgreSQL did not get to it in {limit:?}"))
                    .hint("nothing was changed; something holds a lock on it, or `connections` is too small"))
            }
            Err(_) => Err(outcome_unknown(format!("PostgreSQL did not answer COMMIT in {limit:?}"))),
        }
    }

    async fn tries(&self, call: &Call) -> Result<AnyReply> {
        let mut tries = 0;
        loop {
            match self.attempt(call).await {
                Err(e) if e.is_again() && tries + 1 < TRIES => {
                    tries += 1;
                    let base = (5_u64 << tries).min(LONGEST_PAUSE_MS);
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(base / 2..=base))).await;
                }
                other => return other,
            }
        }
    }

    pub async fn read(&self, caller: Caller, work: Work) -> Result<AnyReply> {
        self.write(Before::looks(), caller, Place::Own, work).await
    }

    /// What must outlast a refusal is committed first; then the op has a transaction of its own.
    async fn attempt(&self, call: &Call) -> Result<AnyReply> {
        let Call { before, caller, place, work, committing, unstored } = call;
        let session = self.session().await?;
        let Begun { mut now, mut opening, stored, resets } = self.begin(&session, before).await?;
        if stored.is_none_or(|stored| now.since(stored) >= STORE_EVERY) {
            *unstored.lock().unwrap_or_else(PoisonError::into_inner) = Some(Unstored { now, resets });
        }
        let todo = match before.todo(&opening, caller, now) {
            Ok(todo) => todo,
            refused => session.finish(refused).await?,
        };
        let expires = before.expires(&opening.due, now);
        if !todo.is_empty() || expires {
            let mut tx = Tx::new(Db::Postgres(&session), now, caller.clone(), opening, Place::Own);
            let from = self.options.clock.ticks();
            let mut outlasted = outlast(&mut tx, &todo).await;
            // A run whose row was locked for so long may have lapsed meanwhile, and is not to be renewed then.
            if outlasted.is_ok() && self.options.clock.ticks() - from > STALE.0 {
                outlasted = Err(Error::again("the run's row was locked by another transaction"));
            }
            // Not the caller's own commit: if its answer is lost, doing what is still due settles it.
            session.finish(outlasted).await.map_err(|e| match e.code() {
                Code::OutcomeUnknown => Error::again(e.message()),
                _ => e,
            })?;
            let expired = if expires { self.expire(&session).await } else { 0 };
            Begun { now, opening, .. } = self.begin(&session, before).await?;
            opening.expired = expired;
        }
        let mut tx = Tx::new(Db::Postgres(&session), now, caller.clone(), opening, *place);
        let result = work(&mut tx).await;
        // What only read is not unknown. (Of an embedder's statements nobody knows what they do.)
        let wrote = tx.wrote() || *place == Place::Embedded;
        committing.store(wrote && result.is_ok(), Ordering::SeqCst);
        let result = session.finish(result).await.map_err(|e| match e.code() {
            Code::OutcomeUnknown if !wrote => Error::again(e.message()),
            _ => e,
        });
        committing.store(false, Ordering::SeqCst);
        result
    }

    /// One batch of expiry in a transaction of its own. A failure is not the caller's: whoever comes next tries again.
    async fn expire(&self, session: &Session) -> u64 {
        let expiring = async {
            let Begun { now, opening, .. } = self.begin(session, &Before::nothing()).await?;
            let mut tx = Tx::new(Db::Postgres(session), now, Caller::default(), opening, Place::Own);
            session.finish(sweep(&mut tx).await).await
        };
        expiring.await.unwrap_or_else(|error| {
            tracing::warn!("a batch of expiry failed: {error}");
            0
        })
    }

    /// BEGIN, the clock and the op's opening reads: one round trip.
    ///
    /// A node that sees the database's clock set back tells the others how far, so that one that has only just
    /// come does not keep the dead alive; and it takes that back when the clock is set right.
    async fn begin(&self, session: &Session, before: &Before) -> Result<Begun> {
        loop {
            let asked = self.options.clock.ticks();
            let Opened { wall, told, stored, resets, version, elsewhere, opening } =
                self.open(session, before).await?;
            let changed = migrate::refuse_changed(version).and_then(|()| match elsewhere {
                true if !before.is_restore() => Err(restored_elsewhere()),
                _ => Ok(()),
            });
            if changed.is_err() {
                session.finish(changed).await?;
            }
            let answered = self.options.clock.ticks();
            let (now, ahead) = {
                let mut watch = self.watch();
                if self.resets.swap(resets, Ordering::SeqCst) != resets {
                    *watch = Watch::default();
                }
                watch.now(Reading { wall, told, stored, asked, answered })
            };
            let Some(ahead) = ahead else {
                let opening = Opening { ahead: now.since(wall), ..opening };
                return Ok(Begun { now, opening, stored, resets });
            };
            let tell = Stmt::new(
                "update fleet set boot = extract(epoch from pg_postmaster_start_time())::text, ahead_ms = ?1
                 where clock_resets = ?2",
                params![ahead, resets],
            );
            session.finish(session.pipeline(&[tell]).await).await?;
        }
    }

    /// Stores the time for nodes that come after this one is gone: without it, they would not see that the database's
    /// clock was set back. A statement of its own, after the call, that waits for nobody: others are storing it, then.
    async fn store(&self, Unstored { now, resets }: Unstored) {
        let Ok(_only_one) = self.storing.try_lock() else { return };
        let storing = async {
            let session = self.session().await?;
            let store = Stmt::new(
                "with late as (
                   select one, seen_at from fleet
                   where (seen_at is null or seen_at + ?2 <= ?1) and clock_resets = ?4 for update skip locked
                 ), unused as (
                   insert into gap(at, ms) select ?1, ?1 - seen_at - ?3 from late where seen_at + ?3 < ?1
                   on conflict do nothing
                 )
                 update fleet set seen_at = ?1 from late where fleet.one = late.one",
                params![now, STORE_EVERY, HOUR, resets],
            );
            session.open.store(true, Ordering::SeqCst);
            let stored = session.pipeline(&[store]).await;
            session.open.store(false, Ordering::SeqCst);
            stored
        };
        match tokio::time::timeout(STORE_LIMIT, storing).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!("the time could not be stored: {error}"),
            Err(_) => tracing::warn!("the time could not be stored in {STORE_LIMIT:?}"),
        }
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn open(&self, session: &Session, before: &Before) -> Result<Opened> {
        let mut statements = vec![Stmt::new("begin", params![])];
        statements.extend(before.statements());
        // After the locks that these may have waited for, as what is due is.
        let clock = statements.len();
        statements.push(Stmt::new(
            concat!(
                "select coalesce(?1, (extract(epoch from clock_timestamp()) * 1000)::bigint) as wall,
               case when boot = extract(epoch from pg_postmaster_start_time())::text then ahead_ms else 0 end as told,
               seen_at, schema_version, epoch, clock_resets, ",
                elsewhere!(),
                " as elsewhere from fleet"
            ),
            params![self.options.clock.wall(true)],
        ));
        statements.extend(before.due());
        session.open.store(true, Ordering::SeqCst);
        session.failed.store(false, Ordering::SeqCst);
        session.logged.store(false, Ordering::SeqCst);
        let mut answers = session.pipeline(&statements).await?;
        let row = &answers.remove(clock).rows[0];
        Ok(Opened {
            wall: row.get("wall")?,
            told: row.get("told")?,
            stored: row.get("seen_at")?,
            resets: row.get("clock_resets")?,
            version: row.get("schema_version")?,
            elsewhere: row.get("elsewhere")?,
            opening: Opening { epoch: row.get("epoch")?, ..before.read_all(answers.split_off(1))? },
        })
    }

    async fn session(&self) -> Result<Session> {
        let client = self.pool.get().await.map_err(pool_error)?;
        Ok(Session {
            client: Some(client),
            stats: self.stats.clone(),
            notices: self.notices.clone(),
            numbers: self.numbers.clone(),
            taking: Mutex::default(),
            open: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            logged: AtomicBool::new(false),
        })
    }

    /// Forward only, one transaction each, under a lock that openers at the same time wait for.
    async fn migrate(&self, schema: &str, target: i64) -> Result<()> {
        let session = self.session().await?;
        let client = session.client();
        let exists = client
            .query_one("select to_regclass($1 || '.migration') is not null", &[&quote(schema)])
            .await
            .map_err(postgres_error)?;
        if exists.get(0) {
            let row =
                client.query_one("select max(version) from migration", &[]).await.map_err(postgres_error)?;
            let version = row.get::<_, Option<i64>>(0).unwrap_or(0);
            migrate::refuse_newer(version)?;
            if !self.options.migrate {
                migrate::refuse_older(version)?;
            }
            if version >= target {
                return Ok(());
            }
        } else if !self.options.create {
            return Err(Error::new(Code::NotFound, format!("there is no fleet in schema `{schema}`"))
                .hint("fence init makes it"));
        }
        for migration in MIGRATIONS.iter().filter(|m| m.version <= target) {
            let script = format!(
                "begin;
                 select pg_advisory_xact_lock(hashtextextended('fencepost migration ' || '{schema}', 0));
                 create schema if not exists {quoted};
                 create table if not exists migration (version bigint primary key, at timestamptz not null default now());",
                quoted = quote(schema)
            );
            session.open.store(true, Ordering::SeqCst);
            client.batch_execute(&script).await.map_err(postgres_error)?;
            let done = client
                .query_one("select count(*) from migration where version = $1", &[&migration.version])
                .await
                .map_err(postgres_error)?;
            if done.get::<_, i64>(0) == 0 {
                let script = migrate::to_postgres(migration.sql) + &migration.mark();
                client.batch_execute(&script).await.map_err(postgres_error)?;
                client
                    .execute("insert into migration(version) values ($1)", &[&migration.version])
                    .await
                    .map_err(postgres_error)?;
            }
            client.batch_execute("commit").await.map_err(postgres_error)?;
            session.open.store(false, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// Connections to be had within the limit.
fn pool_of(target: &Target, size: usize, limit: Duration) -> Result<Pool> {
    let recycle = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(target.config.clone(), tls::connector(target)?, recycle);
    let wait = Some(limit);
    let name_the_cluster = Hook::async_fn(|client: &mut ClientWrapper, _| {
        Box::pin(async move {
            if let Err(error) = client.batch_execute(NAME_THE_CLUSTER).await {
                tracing::debug!("the cluster cannot be named: {error}");
            }
            Ok(())
        })
    });
    Pool::builder(manager)
        .max_size(size)
        .post_create(name_the_cluster)
        .runtime(Runtime::Tokio1)
        .timeouts(Timeouts { wait, create: wait, recycle: wait })
        .build()
        .map_err(Error::internal)
}

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// One connection for the length of one op.
pub(crate) struct Session {
    client: Option<Object>,
    stats: Arc<Stats>,
    notices: Arc<Notices>,
    numbers: Numbers,
    taking: Mutex<Option<Taking>>,
    /// A transaction may be open on the connection.
    open: AtomicBool,
    /// A statement of the transaction failed. If nothing undid it, COMMIT will roll back and call it a success.
    failed: AtomicBool,
    /// The transaction wrote to the log.
    logged: AtomicBool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Drop for Session {
    /// A caller that hung up in the middle leaves a transaction open. Its connection is closed, not put back
    /// for the next to inherit.
    fn drop(&mut self) {
        if self.open.load(Ordering::SeqCst)
            && let Some(client) = self.client.take()
        {
            self.tell_if_logged();
            drop(Object::take(client));
        }
    }
}

impl Session {
    /// It was committed, or may have been.
    fn tell_if_logged(&self) {
        if self.logged.swap(false, Ordering::SeqCst) {
            self.notices.announce();
        }
    }

    fn client(&self) -> &Object {
        self.client.as_ref().expect("taken only when dropped")
    }

    /// Statements in order, one round trip. (The first use of a statement on a connection prepares it.)
    pub(crate) async fn pipeline(&self, statements: &[Stmt]) -> Result<Vec<Answer>> {
        let answers = self.send(statements).await;
        self.failed.fetch_or(answers.is_err(), Ordering::SeqCst);
        answers
    }

    async fn send(&self, statements: &[Stmt]) -> Result<Vec<Answer>> {
        let client = self.client();
        let mut prepared = Vec::with_capacity(statements.len());
        for statement in statements {
            self.stats.statement();
            self.logged.fetch_or(statement.sql.starts_with("insert into event"), Ordering::SeqCst);
            prepared.push(client.prepare_cached(&to_postgres(statement.sql)).await.map_err(postgres_error)?);
        }
        let mut answers = Vec::with_capacity(statements.len());
        for (statements, prepared) in statements.chunks(PIPELINE_MAX).zip(prepared.chunks(PIPELINE_MAX)) {
            self.stats.round_trip();
            let flight = join_all(statements.iter().zip(prepared).map(|(statement, prepared)| async move {
                let params = statement.params.iter().map(|p| p as &(dyn ToSql + Sync));
                let mut stream = pin!(client.query_raw(prepared, params).await?);
                let columns: Arc<[Box<str>]> = prepared.columns().iter().map(|c| c.name().into()).collect();
                let mut rows = Vec::new();
                while let Some(row) = stream.try_next().await? {
                    rows.push(read_row(&row, columns.clone()));
                }
                Ok((rows, stream.rows_affected().unwrap_or(0)))
            }));
            // After the first error the others only say that the transaction was aborted.
            for answer in flight.await {
                let (rows, affected) = answer.map_err(postgres_error)?;
                answers.push(Answer { rows: rows.into_iter().collect::<Result<_>>()?, affected });
            }
        }
        Ok(answers)
    }

    pub(crate) async fn describe(&self) -> Result<Database> {
        let statement = Stmt::new(
            "select current_setting('server_version') as version, current_setting('fsync') as fsync,
               current_setting('full_page_writes') as full_page_writes,
               current_setting('synchronous_commit') as synchronous_commit,
               (select max(version) from migration) as schema_version",
            params![],
        );
        let answers = self.pipeline(&[statement]).await?;
        let row = &answers[0].rows[0];
        let waits = ["on", "local", "remote_write", "remote_apply"];
        Ok(Database {
            kind: "PostgreSQL".into(),
            version: row.get("version")?,
            schema_version: row.get("schema_version")?,
            durability: vec![
                Setting::new("fsync", row.get("fsync")?, &["on"]),
                Setting::new("full_page_writes", row.get("full_page_writes")?, &["on"]),
                Setting::new("synchronous_commit", row.get("synchronous_commit")?, &waits),
            ],
        })
    }

    /// COMMIT or ROLLBACK, as the result says.
    async fn finish<T>(&self, result: Result<T>) -> Result<T> {
        let mut end = vec![Stmt::new(if result.is_ok() { "commit" } else { "rollback" }, params![])];
        if result.is_ok() && self.failed.load(Ordering::SeqCst) {
            // Refused where COMMIT would only roll back.
            end.insert(0, Stmt::new("select 1", params![]));
        }
        let ended = self.pipeline(&end).await;
        if result.is_ok() {
            self.tell_if_logged();
        }
        match (result, ended) {
            (Ok(value), Ok(_)) => {
                self.open.store(false, Ordering::SeqCst);
                Ok(value)
            }
            (Ok(_), Err(e)) if e.field("sqlstate").is_some_and(|state| state == "25P02") => {
                Err(Error::internal("a statement in the transaction failed, so all of it was rolled back")
                    .hint("return the statement's error, or undo it with a savepoint"))
            }
            (Ok(_), Err(e)) if e.field("sqlstate").is_some_and(rolled_back) => Err(e),
            (Ok(_), Err(e)) => {
                Err(outcome_unknown(format!("the answer to COMMIT was lost: {}", e.message())))
            }
            (Err(e), ended) => {
                self.open.store(ended.is_err(), Ordering::SeqCst);
                Err(e)
            }
        }
    }
}

fn restored_elsewhere() -> Error {
    Error::lasting("this database is a copy of a fleet that lives elsewhere: a dump that was restored here")
        .hint("if nobody works with the original any longer, say so: fence call admin/restored '{}'")
}

fn outcome_unknown(message: String) -> Error {
    Error::new(Code::OutcomeUnknown, message)
        .hint("ask again with the same request id: it is done at most once")
}

/// Integrity (23) and rollback (40) errors at COMMIT, and a transaction that was ended because it stood idle, say for
/// certain that nothing was committed.
fn rolled_back(sqlstate: &serde_json::Value) -> bool {
    sqlstate.as_str().is_some_and(|code| code.starts_with("23") || code.starts_with("40") || code == IDLE)
}

/// `idle_in_transaction_session_timeout`: this node froze, or was very busy, between two statements.
const IDLE: &str = "25P03";

fn pool_error(e: PoolError) -> Error {
    match e {
        PoolError::Backend(e) => postgres_error(e),
        PoolError::Timeout(_) => Error::unavailable("no connection to PostgreSQL became free in time")
            .hint("it is down, or `connections` is too small for the number of callers"),
        e => Error::unavailable(format!("PostgreSQL cannot be reached: {e}")),
    }
}

/// What PostgreSQL said, in words that say what to do. Before COMMIT nothing is lost by starting over.
fn postgres_error(e: tokio_postgres::Error) -> Error {
    let Some(db) = e.as_db_error() else { return client_error(&e) };
    let state = db.code();
    let error = if *state == SqlState::T_R_SERIALIZATION_FAILURE || *state == SqlState::T_R_DEADLOCK_DETECTED
    {
        Error::again(format!("PostgreSQL asks to try again: {}", db.message()))
    } else if state.code() == IDLE {
        Error::again(format!("PostgreSQL ended the transaction: {}", db.message()))
            .hint("this process did nothing for too long between two statements; try again")
    } else if ["57P", "08"].iter().any(|class| state.code().starts_with(class)) {
        Error::again(format!("PostgreSQL is shutting down or starting: {}", db.message()))
            .hint("try again in a moment")
    } else if ["28", "3D"].iter().any(|class| state.code().starts_with(class)) {
        Error::unavailable(format!("PostgreSQL refuses the connection: {}", db.message())).hint(LOGIN)
    } else if *state == SqlState::LOCK_NOT_AVAILABLE || *state == SqlState::QUERY_CANCELED {
        Error::unavailable(format!("PostgreSQL gave up on it: {}", db.message()))
            .hint("something holds a lock on it (see pg_stat_activity): try again")
    } else if state.code().starts_with("53") || *state == SqlState::READ_ONLY_SQL_TRANSACTION {
        Error::unavailable(format!("PostgreSQL cannot take it now: {}", db.message()))
    } else {
        Error::internal(format!("PostgreSQL: {}", db.message()))
    };
    error.with("sqlstate", state.code())
}

/// What went wrong on this side, or on the way. The library tells its kinds apart only by their text.
fn client_error(e: &tokio_postgres::Error) -> Error {
    let kind = e.to_string();
    let cause = e.source().map_or_else(|| kind.clone(), |source| format!("{kind}: {source}"));
    let io = e.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    let untrusted = crate::tls::distrust(e);
    if untrusted.is_some() || (io.is_none() && kind == "error performing TLS handshake") {
        let why = untrusted.map_or(cause, |(_, why)| why);
        Error::unavailable(format!("PostgreSQL cannot be trusted: {why}"))
            .hint("its certificate must fit sslmode and sslrootcert")
    } else if e.is_closed() || io.is_some() || kind == "timeout waiting for server" {
        Error::again(format!("PostgreSQL cannot be reached: {cause}"))
            .hint("is it running, and is the address right?")
    } else if kind == "invalid configuration" || kind == "authentication error" {
        Error::unavailable(format!("PostgreSQL cannot be logged in to: {cause}")).hint(LOGIN)
    } else {
        Error::internal(format!("PostgreSQL: {cause}"))
    }
}

const LOGIN: &str = "check the user, the password and the database in the address";

fn read_row(row: &tokio_postgres::Row, columns: Arc<[Box<str>]>) -> Result<Row> {
    let types = row.columns().iter().enumerate();
    let values = types.map(|(i, column)| read_value(row, i, column.type_())).collect::<Result<_>>()?;
    Ok(Row::new(columns, values))
}

fn read_value(row: &tokio_postgres::Row, i: usize, ty: &Type) -> Result<Value> {
    let value = match *ty {
        Type::INT8 => row.try_get::<_, Option<i64>>(i).map(|v| v.map(Value::Int)),
        Type::INT4 => row.try_get::<_, Option<i32>>(i).map(|v| v.map(|v| Value::Int(v.into()))),
        Type::BOOL => row.try_get::<_, Option<bool>>(i).map(|v| v.map(|v| Value::Int(v.into()))),
        Type::TEXT | Type::VARCHAR | Type::NAME => {
            row.try_get::<_, Option<String>>(i).map(|v| v.map(Value::Text))
        }
        Type::VOID => Ok(None),
        ref other => return Err(Error::internal(format!("a column has the type {other}"))),
    };
    Ok(value.map_err(postgres_error)?.unwrap_or(Value::Null))
}

impl ToSql for Value {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut bytes::BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Value::Null => Ok(IsNull::Yes),
            Value::Int(v) if *ty == Type::INT4 => i32::try_from(*v)?.to_sql(ty, out),
            Value::Int(v) if *ty == Type::BOOL => (*v != 0).to_sql(ty, out),
            Value::Int(v) if *ty == Type::INT8 => v.to_sql(ty, out),
            Value::Int(_) => Err(format!("a number was given for a {ty}").into()),
            Value::Text(v) => v.as_str().to_sql(ty, out),
        }
    }
    fn accepts(_: &Type) -> bool {
        true
    }
    to_sql_checked!();
}
