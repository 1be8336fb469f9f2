//! Many machines on one database: stateless nodes, the database's clock, few round trips.
//!
//! Statements that do not depend on an earlier answer are pipelined: BEGIN, the clock and the op's opening reads are
//! one round trip. A call that PostgreSQL asks to retry is retried a bounded number of times. A COMMIT whose answer was
//! lost is `outcome_unknown`, and is never retried here.

mod allocator;
mod error;
mod news;
mod notifier;
mod session;
mod tls;
mod url;

use super::{
    Due, Opening, Outcome, PreludeWork, Script, Stmt, Tx,
    dialect::migration_to_postgres,
    in_use::HOUR,
    migrate::{self, MIGRATIONS},
    options::Options,
    stats::Stats,
    tx::{Db, Scope},
};
use crate::{
    backoff::Backoff,
    caller::Caller,
    clock::{ClockReading, DatabaseClock, Millis, Time},
    error::{Code, Error, Result},
    params,
    sync::lock,
};
use allocator::NumberAllocator;
use deadpool_postgres::{
    ClientWrapper, Hook, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime, Timeouts,
};
use error::{outcome_unknown, pool_error, postgres_error};
use notifier::Notifier;
pub(crate) use session::Session;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};
pub(crate) use url::Target;

/// Whether this database is a copy: the row of `fleet` is in another cluster or schema than the row says. Takes 3 us.
macro_rules! is_restored_copy {
    () => {
        "coalesce(schema_oid <> quote_ident(current_schema())::regnamespace::oid::bigint, false)
         or coalesce(system <> nullif(current_setting('fencepost.system', true), ''), false)"
    };
}
pub(crate) use is_restored_copy;

/// Stores the cluster's name on each new connection, which may lead to another cluster than the last one. A user
/// without the privilege to read the name stores none.
const NAME_THE_CLUSTER: &str = "do $$ begin
    perform set_config('fencepost.system', (select system_identifier::text from pg_control_system()), false);
  exception when insufficient_privilege or undefined_function then null; end $$";

/// A call that lost a race is tried this often, with pauses of about a second together: the transaction that it raced
/// with may run on a busy machine.
const ATTEMPTS: u32 = 10;
const RETRY: Backoff = Backoff::new(Duration::from_millis(8), Duration::from_millis(200));
/// A renewal that waited longer than this for the run's row used an old time: the call starts over.
const STALE: Millis = Millis::seconds(2);
/// How far the stored time may be behind, and the longest that a call takes to store it.
const STORE_EVERY: Millis = Millis::seconds(1);
const STORE_LIMIT: Duration = Duration::from_secs(1);

pub(crate) struct Postgres {
    pool: Pool,
    clock: Mutex<DatabaseClock>,
    /// The number of clock resets when the clock was last read.
    resets: AtomicI64,
    /// Held by the call that stores the time.
    storing: tokio::sync::Mutex<()>,
    /// The snapshot of the last question for news.
    snapshot: Mutex<Option<String>>,
    /// Some events were held back then: an older transaction was still running.
    held_back: AtomicBool,
    notifier: Arc<Notifier>,
    allocator: NumberAllocator,
    /// Reads the next deadline.
    due: &'static str,
    options: Options,
    stats: Arc<Stats>,
}

impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Postgres").finish_non_exhaustive()
    }
}

/// One call with all its attempts.
struct Call {
    script: Arc<dyn Script>,
    /// COMMIT was sent, and not answered yet.
    committing: AtomicBool,
    /// The time to store after this call, if the stored one is too old.
    unstored: Mutex<Option<UnstoredTime>>,
}

/// A time to be stored.
#[derive(Clone, Copy)]
struct UnstoredTime {
    now: Time,
    /// The number of clock resets at that time. After a reset this time is wrong, and is not stored.
    resets: i64,
}

/// The answer to the first round trip of a transaction.
struct Opened {
    /// The database's clock.
    wall: Time,
    /// How far the fleet's time is ahead of it, as a node stored.
    stored_ahead: Millis,
    /// The latest time that any node has stored.
    stored_time: Option<Time>,
    /// The number of times that an operator set the clock right.
    resets: i64,
    /// The schema's version. It is read from the row of `fleet`: from `migration` it takes 15 us more.
    version: i64,
    /// The database is a copy of a fleet that lives elsewhere.
    is_copy: bool,
    opening: Opening,
}

/// A transaction that has begun.
struct Begun {
    now: Time,
    opening: Opening,
    /// The latest time that any node has stored.
    stored_time: Option<Time>,
    /// The number of clock resets.
    resets: i64,
}

impl Postgres {
    pub async fn connect(url: &str, options: &Options, stats: Arc<Stats>, due: &'static str) -> Result<Self> {
        let mut target = Target::parse(url)?;
        // `lock_timeout`: a caller that gave up leaves its statement waiting for a lock, so the server gives up as
        // well. Idle and TCP timeouts: a node that froze or lost its network leaves its transactions open and its rows
        // locked, so the server ends them. `enable_seqscan`: tables grow faster than the server's statistics, and with
        // stale statistics it reads a whole table where an index exists (`tests/it/grown.rs`). `jit`: a scan that is
        // needed all the same (the one row of `fleet`) then looks so expensive that the server would compile it, 40 ms
        // for 0.02.
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
            allocator: NumberAllocator::new(&target, options)?,
            notifier: Notifier::new(target, pool.clone(), stats.clone()),
            pool,
            clock: Mutex::default(),
            resets: AtomicI64::new(0),
            storing: tokio::sync::Mutex::default(),
            snapshot: Mutex::default(),
            held_back: AtomicBool::new(false),
            due,
            options: options.clone(),
            stats,
        };
        store.migrate(&schema, options.schema_version.unwrap_or(migrate::latest())).await?;
        Ok(store)
    }

    pub async fn write(&self, script: Arc<dyn Script>) -> Outcome {
        let call = Call { script, committing: AtomicBool::new(false), unstored: Mutex::default() };
        let limit = self.options.call_limit;
        let done = tokio::time::timeout(limit, self.attempts(&call)).await;
        let unstored = lock(&call.unstored).take();
        if let Some(unstored) = unstored {
            self.store_time(unstored).await;
        }
        match done {
            Ok(outcome) => outcome,
            // The attempt's connection was closed, so a transaction that was not being committed is rolled back.
            Err(_) if !call.committing.load(Ordering::SeqCst) => Error::unavailable(format!(
                "PostgreSQL did not finish the call in {limit:?}"
            ))
            .hint("nothing was changed; another transaction holds a lock, or `connections` is too small")
            .into(),
            Err(_) => outcome_unknown(format!("PostgreSQL did not answer COMMIT in {limit:?}")).into(),
        }
    }

    async fn attempts(&self, call: &Call) -> Outcome {
        let (mut made, mut backoff) = (0, RETRY);
        loop {
            let outcome = self.attempt(call).await.unwrap_or_else(Outcome::from);
            made += 1;
            let raced = outcome.answer.as_ref().is_err_and(Error::is_race);
            if !raced || made == ATTEMPTS {
                return outcome;
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }

    /// One attempt: commits the prelude, and then runs the call in a transaction of its own.
    async fn attempt(&self, call: &Call) -> Result<Outcome> {
        let Call { script, committing, unstored } = call;
        let session = self.session().await?;
        let Begun { mut now, mut opening, stored_time, resets } =
            self.begin(&session, Some(&**script)).await?;
        if stored_time.is_none_or(|stored| now.since(stored) >= STORE_EVERY) {
            *lock(unstored) = Some(UnstoredTime { now, resets });
        }
        let PreludeWork { renew, expire } = match script.prelude_work(&opening, now) {
            Ok(work) => work,
            refused => session.finish(refused).await?,
        };
        if renew || expire {
            let mut tx = Tx::new(Db::Postgres(&session), now, script.caller().clone(), opening);
            let from = self.options.clock.ticks();
            let mut renewed = if renew { script.renew(&mut tx).await } else { Ok(()) };
            // While its row was locked for so long, the run may have expired, and must not be renewed.
            if renewed.is_ok() && self.options.clock.ticks() - from > STALE.0 {
                renewed = Err(Error::raced("the run's row was locked by another transaction"));
            }
            // This is not the caller's own commit: if its answer is lost, the next attempt does the rest.
            session.finish(renewed).await.map_err(|e| match e.code() {
                Code::OutcomeUnknown => Error::raced(e.message()),
                _ => e,
            })?;
            let expired = if expire { self.expire(&session, &**script).await } else { 0 };
            Begun { now, opening, .. } = self.begin(&session, Some(&**script)).await?;
            opening.expired = expired;
        }
        let embedded = opening.scope == Scope::Embedded;
        let mut tx = Tx::new(Db::Postgres(&session), now, script.caller().clone(), opening);
        let answer = script.run(&mut tx).await;
        let notes = tx.into_notes();
        // The outcome of a call that only read is never unknown. (An embedder's statements may always write.)
        let wrote = notes.writes > 0 || embedded;
        committing.store(wrote && answer.is_ok(), Ordering::SeqCst);
        let answer = session.finish(answer).await.map_err(|e| match e.code() {
            Code::OutcomeUnknown if !wrote => Error::raced(e.message()),
            _ => e,
        });
        committing.store(false, Ordering::SeqCst);
        Ok(Outcome { answer, notes })
    }

    /// Runs one batch of expiry in a transaction of its own. A failure does not fail the caller: the next call tries
    /// again.
    async fn expire(&self, session: &Session, script: &dyn Script) -> u64 {
        let expiring = async {
            let Begun { now, opening, .. } = self.begin(session, None).await?;
            let mut tx = Tx::new(Db::Postgres(session), now, Caller::default(), opening);
            session.finish(script.expire(&mut tx).await).await
        };
        expiring.await.unwrap_or_else(|error| {
            tracing::warn!("a batch of expiry failed: {error}");
            0
        })
    }

    /// BEGIN, the clock and the op's opening reads: one round trip.
    ///
    /// A node that sees the database's clock set back stores how far, so that a new node does not keep dead runs alive.
    /// It corrects the stored value when the clock is set right.
    async fn begin(&self, session: &Session, script: Option<&dyn Script>) -> Result<Begun> {
        loop {
            let asked = self.options.clock.ticks();
            let Opened { wall, stored_ahead, stored_time, resets, version, is_copy, opening } =
                self.open(session, script).await?;
            let changed = migrate::refuse_changed(version).and_then(|()| match is_copy {
                true if !script.is_some_and(Script::declares_restore) => Err(restored_copy()),
                _ => Ok(()),
            });
            if changed.is_err() {
                session.finish(changed).await?;
            }
            let answered = self.options.clock.ticks();
            let (now, ahead) = {
                let mut clock = lock(&self.clock);
                if self.resets.swap(resets, Ordering::SeqCst) != resets {
                    *clock = DatabaseClock::default();
                }
                clock.now(ClockReading { wall, stored_ahead, stored_time, asked, answered })
            };
            let Some(ahead) = ahead else {
                let opening = Opening { ahead: now.since(wall), ..opening };
                return Ok(Begun { now, opening, stored_time, resets });
            };
            let store_ahead = Stmt::write(
                "update fleet set boot = extract(epoch from pg_postmaster_start_time())::text, ahead_ms = ?1
                 where clock_resets = ?2",
                params![ahead, resets],
            );
            session.finish(session.pipeline(&[store_ahead]).await).await?;
        }
    }

    /// Stores the time. Without it, a node that starts when this one is gone would not see that the database's clock
    /// was set back. The statement runs after the call and skips a locked row: another node is storing the time then.
    async fn store_time(&self, UnstoredTime { now, resets }: UnstoredTime) {
        let Ok(_only_one) = self.storing.try_lock() else { return };
        let storing = async {
            let session = self.session().await?;
            let store_time = Stmt::write(
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
            let stored = session.pipeline(&[store_time]).await;
            session.open.store(false, Ordering::SeqCst);
            stored
        };
        match tokio::time::timeout(STORE_LIMIT, storing).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!("the time could not be stored: {error}"),
            Err(_) => tracing::warn!("the time could not be stored in {STORE_LIMIT:?}"),
        }
    }

    async fn open(&self, session: &Session, script: Option<&dyn Script>) -> Result<Opened> {
        let mut statements = vec![Stmt::read("begin", params![])];
        statements.extend(script.map(Script::reads).unwrap_or_default());
        // The clock and the next deadline are read last: the reads before them may have waited for locks.
        let clock = statements.len();
        statements.push(Stmt::read(
            concat!(
                "select coalesce(?1, (extract(epoch from clock_timestamp()) * 1000)::bigint) as wall,
               case when boot = extract(epoch from pg_postmaster_start_time())::text then ahead_ms else 0 end as ahead,
               seen_at, schema_version, epoch, clock_resets, ",
                is_restored_copy!(),
                " as is_copy from fleet"
            ),
            params![self.options.clock.wall(true)],
        ));
        let reads_due = script.is_some_and(Script::reads_due);
        statements.extend(reads_due.then(|| Stmt::read(self.due, params![])));
        session.begin();
        let mut answers = session.pipeline(&statements).await?;
        let due = if reads_due { answers.pop().map(|answer| Due::read(&answer)).transpose()? } else { None };
        let row = &answers.remove(clock).rows[0];
        let answers = answers.split_off(1);
        let opening = match script {
            Some(script) => script.opening(due, answers)?,
            None => Opening { due_unknown: true, ..Opening::default() },
        };
        Ok(Opened {
            wall: row.get("wall")?,
            stored_ahead: row.get("ahead")?,
            stored_time: row.get("seen_at")?,
            resets: row.get("clock_resets")?,
            version: row.get("schema_version")?,
            is_copy: row.get("is_copy")?,
            opening: Opening { epoch: row.get("epoch")?, ..opening },
        })
    }

    async fn session(&self) -> Result<Session> {
        let client = self.pool.get().await.map_err(pool_error)?;
        Ok(Session::new(client, self.stats.clone(), self.notifier.clone(), self.allocator.clone(), self.due))
    }

    /// Runs the missing migrations, one transaction each, under a lock: processes that open the fleet at the same time
    /// wait for each other.
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
                let script = migration_to_postgres(migration.sql) + &migration.store_version();
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

/// A pool of connections. A caller waits for one no longer than the limit.
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

fn restored_copy() -> Error {
    Error::fleet_changed(
        "this database is a copy of a fleet that lives elsewhere: a dump that was restored here",
    )
    .hint("if nobody uses the original any more, declare that: fence call admin/restored '{}'")
}
