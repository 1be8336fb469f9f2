//! Many machines on one database: stateless nodes, the database's clock, few round trips.
//!
//! What does not depend on an earlier answer is pipelined: BEGIN, the clock and the op's opening reads are
//! one round trip. What PostgreSQL says may be retried is retried, a bounded number of times. A COMMIT whose
//! answer was lost is `outcome_unknown`, and never retried by itself.

mod error;
mod notice;
mod numbers;
mod session;
mod tls;
mod url;
mod watch;

use super::{
    Due, First, Opening, Outcome, Script, Stmt, Tx,
    in_use::HOUR,
    migrate::{self, MIGRATIONS},
    options::Options,
    stats::Stats,
    tx::{Db, Scope},
};
use crate::{
    caller::Caller,
    clock::{ClockWatch, Millis, Reading, Time},
    error::{Code, Error, Result},
    params,
    sync::lock,
};
use deadpool_postgres::{
    ClientWrapper, Hook, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime, Timeouts,
};
use error::{outcome_unknown, pool_error, postgres_error};
use notice::Notices;
use numbers::Numbers;
pub(crate) use session::Session;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
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

pub(crate) struct Postgres {
    pool: Pool,
    watch: Mutex<ClockWatch>,
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

/// One call, however many tries it takes.
struct Call {
    script: Arc<dyn Script>,
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
    pub async fn connect(url: &str, options: &Options, stats: Arc<Stats>, due: &'static str) -> Result<Self> {
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
        let done = tokio::time::timeout(limit, self.tries(&call)).await;
        let unstored = lock(&call.unstored).take();
        if let Some(unstored) = unstored {
            self.store(unstored).await;
        }
        match done {
            Ok(outcome) => outcome,
            // Its connection was closed with it, so what was not being committed is rolled back.
            Err(_) if !call.committing.load(Ordering::SeqCst) => {
                Error::unavailable(format!("PostgreSQL did not get to it in {limit:?}"))
                    .hint("nothing was changed; something holds a lock on it, or `connections` is too small")
                    .into()
            }
            Err(_) => outcome_unknown(format!("PostgreSQL did not answer COMMIT in {limit:?}")).into(),
        }
    }

    async fn tries(&self, call: &Call) -> Outcome {
        let mut tries = 0;
        loop {
            let outcome = self.attempt(call).await.unwrap_or_else(Outcome::from);
            let raced = outcome.answer.as_ref().is_err_and(Error::is_race);
            if !raced || tries + 1 >= TRIES {
                return outcome;
            }
            tries += 1;
            let base = (5_u64 << tries).min(LONGEST_PAUSE_MS);
            tokio::time::sleep(Duration::from_millis(fastrand::u64(base / 2..=base))).await;
        }
    }

    /// Commits what comes first; then the call has a transaction of its own.
    async fn attempt(&self, call: &Call) -> Result<Outcome> {
        let Call { script, committing, unstored } = call;
        let session = self.session().await?;
        let Begun { mut now, mut opening, stored, resets } = self.begin(&session, Some(&**script)).await?;
        if stored.is_none_or(|stored| now.since(stored) >= STORE_EVERY) {
            *lock(unstored) = Some(Unstored { now, resets });
        }
        let First { renew, expire } = match script.first(&opening, now) {
            Ok(first) => first,
            refused => session.finish(refused).await?,
        };
        if renew || expire {
            let mut tx = Tx::new(Db::Postgres(&session), now, script.caller().clone(), opening);
            let from = self.options.clock.ticks();
            let mut renewed = if renew { script.renew(&mut tx).await } else { Ok(()) };
            // A run whose row was locked for so long may have expired meanwhile, and is not to be renewed then.
            if renewed.is_ok() && self.options.clock.ticks() - from > STALE.0 {
                renewed = Err(Error::raced("the run's row was locked by another transaction"));
            }
            // Not the caller's own commit: if its answer is lost, the next try does what is still due.
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
        // A call that only read is not unknown. (Of an embedder's statements nobody knows what they do.)
        let wrote = notes.writes > 0 || embedded;
        committing.store(wrote && answer.is_ok(), Ordering::SeqCst);
        let answer = session.finish(answer).await.map_err(|e| match e.code() {
            Code::OutcomeUnknown if !wrote => Error::raced(e.message()),
            _ => e,
        });
        committing.store(false, Ordering::SeqCst);
        Ok(Outcome { answer, notes })
    }

    /// One batch of expiry in a transaction of its own. A failure is not the caller's: the next call tries again.
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
    /// A node that sees the database's clock set back tells the others how far, so that one that has only just
    /// come does not keep the dead alive; and it takes that back when the clock is set right.
    async fn begin(&self, session: &Session, script: Option<&dyn Script>) -> Result<Begun> {
        loop {
            let asked = self.options.clock.ticks();
            let Opened { wall, told, stored, resets, version, elsewhere, opening } =
                self.open(session, script).await?;
            let changed = migrate::refuse_changed(version).and_then(|()| match elsewhere {
                true if !script.is_some_and(Script::declares_restore) => Err(restored_elsewhere()),
                _ => Ok(()),
            });
            if changed.is_err() {
                session.finish(changed).await?;
            }
            let answered = self.options.clock.ticks();
            let (now, ahead) = {
                let mut watch = lock(&self.watch);
                if self.resets.swap(resets, Ordering::SeqCst) != resets {
                    *watch = ClockWatch::default();
                }
                watch.now(Reading { wall, told, stored, asked, answered })
            };
            let Some(ahead) = ahead else {
                let opening = Opening { ahead: now.since(wall), ..opening };
                return Ok(Begun { now, opening, stored, resets });
            };
            let tell = Stmt::write(
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
            let store = Stmt::write(
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

    async fn open(&self, session: &Session, script: Option<&dyn Script>) -> Result<Opened> {
        let mut statements = vec![Stmt::read("begin", params![])];
        statements.extend(script.map(Script::reads).unwrap_or_default());
        // After the locks that these may have waited for, as the next deadline is.
        let clock = statements.len();
        statements.push(Stmt::read(
            concat!(
                "select coalesce(?1, (extract(epoch from clock_timestamp()) * 1000)::bigint) as wall,
               case when boot = extract(epoch from pg_postmaster_start_time())::text then ahead_ms else 0 end as told,
               seen_at, schema_version, epoch, clock_resets, ",
                elsewhere!(),
                " as elsewhere from fleet"
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
            told: row.get("told")?,
            stored: row.get("seen_at")?,
            resets: row.get("clock_resets")?,
            version: row.get("schema_version")?,
            elsewhere: row.get("elsewhere")?,
            opening: Opening { epoch: row.get("epoch")?, ..opening },
        })
    }

    async fn session(&self) -> Result<Session> {
        let client = self.pool.get().await.map_err(pool_error)?;
        Ok(Session::new(client, self.stats.clone(), self.notices.clone(), self.numbers.clone(), self.due))
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

fn restored_elsewhere() -> Error {
    Error::lasting("this database is a copy of a fleet that lives elsewhere: a dump that was restored here")
        .hint("if nobody works with the original any longer, say so: fence call admin/restored '{}'")
}
