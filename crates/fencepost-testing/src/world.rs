//! A fleet of its own for every test, on either database, with a clock that stands still until it is moved.

use crate::{PATIENCE, eventually, postgres};
use fencepost::{
    Clock, Code, Error, Fallback, Fleet, ManualClock, Millis, Options, Result, Time, admin, agent, claim,
    event, mail, params, run, task,
};
use std::{sync::Arc, time::Duration};

/// Defines each test once and runs it on both databases. The file's own `World` has `sqlite()`, `postgres()` and
/// `assert_sound()`.
#[macro_export]
macro_rules! on_both {
    ($($(#[$doc:meta])* async fn $name:ident($world:ident: $World:ident) $body:block)*) => {
        $($(#[$doc])* async fn $name($world: $World) $body)*
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let world = super::$World::sqlite().await;
                super::$name(world.clone()).await;
                world.assert_sound().await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let world = super::$World::postgres().await;
                super::$name(world.clone()).await;
                world.assert_sound().await;
            })*
        }
    };
}

#[derive(Debug, Clone)]
pub struct World {
    pub fleet: Fleet,
    pub clock: ManualClock,
    pub url: String,
    _dir: Option<Arc<tempfile::TempDir>>,
}

/// The time at which every test begins.
pub const START: &str = "2026-01-01T12:00:00Z";

impl World {
    pub async fn sqlite() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let url = dir.path().join("fence.db").display().to_string();
        Self::open(url, Some(dir.into())).await
    }

    pub async fn postgres() -> Self {
        Self::open(postgres::url(&postgres::fresh_schema()), None).await
    }

    async fn open(url: String, dir: Option<Arc<tempfile::TempDir>>) -> Self {
        let clock = ManualClock::at(START.parse::<Time>().expect("a time"));
        let fleet = Fleet::open_with(&url, options(&clock)).await.expect("the fleet opens");
        Self { fleet, clock, url, _dir: dir }
    }

    /// Opens the fleet with the usual fallback for waiters. A test needs it if calls are cut off at any moment: such a call
    /// may lock an item and change nothing, a claim skips the locked item, and no event announces that it is free again.
    pub async fn with_fallback(self) -> Self {
        let mut options = options(&self.clock);
        options.fallback = Fallback::default();
        let fleet = Fleet::open_with(&self.url, options).await.expect("the fleet opens again");
        Self { fleet, ..self }
    }

    /// Opens the same fleet again, with its own connections. To the database it is another process.
    pub async fn again(&self) -> Fleet {
        Fleet::open_with(&self.url, options(&self.clock)).await.expect("the fleet opens again")
    }

    pub fn is_postgres(&self) -> bool {
        self.url.starts_with("postgres")
    }

    pub fn pass(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    /// Moves the clock as if the fleet had been used in every hour. Retention counts only time in use.
    pub async fn pass_in_use(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
        let at = Clock::Manual(self.clock.clone()).read().0;
        let used = self.fleet.transaction(move |tx| {
            Box::pin(async move {
                tx.execute("update fleet set seen_at = ?1", params![at]).await?;
                tx.execute("delete from gap where at = ?1", params![at]).await
            })
        });
        used.await.expect("time passes");
    }

    /// Runs the integrity check. No promise may be broken.
    pub async fn assert_sound(&self) {
        let report = self.fleet.call(admin::Check {}).await.expect("the check runs");
        assert!(report.ok, "{:#?}", report.violations);
    }

    pub async fn add(&self, title: &str) -> String {
        self.fleet.call(task::Add::new("auth", title)).await.expect("added").task.id
    }

    pub async fn add_after(&self, title: &str, after: &[&str]) -> String {
        let after = after.iter().map(ToString::to_string).collect();
        self.fleet.call(task::Add { after, ..task::Add::new("auth", title) }).await.expect("added").task.id
    }

    /// Claims a task for a run with a lease of 30 s, and returns its token.
    pub async fn claim(&self, task: &str, run: &str) -> Result<String> {
        let claim = task::Claim { ttl_ms: Some(Millis::seconds(30)), ..task::Claim::of(task, run) };
        Ok(self.fleet.call(claim).await?.claim.token)
    }

    /// Claims the best task of the board for a run with a lease of 30 s.
    pub async fn claim_next(&self, run: &str) -> Result<String> {
        let claim = task::Claim { ttl_ms: Some(Millis::seconds(30)), ..task::Claim::next("auth", run) };
        Ok(self.fleet.call(claim).await?.claim.token)
    }

    pub async fn done(&self, token: &str) -> Result<task::Task> {
        Ok(self.fleet.call(task::Done::new(token)).await?.task)
    }

    pub async fn guard(&self, token: &str) -> claim::Verdict {
        self.fleet.call(claim::Guard::new(token)).await.expect("an answer").reason
    }

    pub async fn show(&self, task: &str) -> task::Task {
        self.fleet.call(task::Show { task: task.into() }).await.expect("the task").task
    }

    pub async fn join(&self, name: &str, role: agent::Role) {
        let join = agent::Join { agent: name.into(), role: Some(role), ..Default::default() };
        self.fleet.call(join).await.expect("joined");
    }

    /// Pushes a message and returns its id.
    pub async fn push(&self, mailbox: &str, payload: &str) -> i64 {
        self.fleet.call(mail::Push::new(mailbox, payload)).await.expect("pushed").message.id
    }

    /// Claims up to this many messages for a run with a lease of 30 s, and returns the tokens.
    pub async fn claim_mail(&self, mailbox: &str, run: &str, count: i64) -> Result<Vec<String>> {
        claim_mail(&self.fleet, mailbox, run, count).await
    }

    pub async fn message(&self, id: i64) -> mail::Message {
        self.fleet.call(mail::Show { message: id }).await.expect("the message").message
    }

    /// Changes the database directly.
    pub async fn sql(&self, sql: &'static str) {
        self.fleet.transaction(move |tx| Box::pin(tx.execute(sql, params![]))).await.expect("changed");
    }

    /// Reads the log to its end. On PostgreSQL a follower waits for the oldest running transaction, which may be another
    /// test's: the end is reached when every stored event was read.
    pub async fn follow(&self, from: event::List) -> Vec<event::Entry> {
        let stored = self.log().await.len();
        eventually("the log is readable", async || {
            let all = event::List { limit: Some(1000), ..event::List::default() };
            self.fleet.call(all).await.expect("a page").events.len() == stored
        })
        .await;
        self.fleet.call(from).await.expect("a page").events
    }

    pub async fn end(&self, run: &str) {
        self.fleet.call(run::End { run: run.into(), ..run::End::default() }).await.expect("ended");
    }

    /// The stored log, one line per event: `task.claimed task/auth-1 unassigned>in_progress r/bob @1`. It reads the table:
    /// on PostgreSQL `event/list` holds back events newer than the oldest transaction of any test.
    pub async fn log(&self) -> Vec<String> {
        let rows = self.fleet.transaction(|tx| {
            Box::pin(async move {
                tx.query(
                    "select kind, resource, from_state, to_state, run, agent, fence, details from event order by id",
                    vec![],
                )
                .await
            })
        });
        let line = |row: &fencepost::Row| -> Result<String> {
            let text = |name| Ok::<_, Error>(row.get::<Option<String>>(name)?.unwrap_or("-".into()));
            let fence = row.get::<Option<i64>>("fence")?.map_or("-".into(), |fence| format!("@{fence}"));
            let (from, to) = (text("from_state")?, text("to_state")?);
            let who = format!("{}/{}", text("run")?, text("agent")?);
            Ok(format!(
                "{} {} {from}>{to} {who} {fence} {}",
                text("kind")?,
                text("resource")?,
                text("details")?
            ))
        };
        rows.await.expect("the log").iter().map(|row| line(row).expect("an event")).collect()
    }

    /// This world with its fleet opened again.
    pub async fn reopened(&self) -> Self {
        Self { fleet: self.again().await, ..self.clone() }
    }

    /// A fleet at another address, with the same clock.
    pub async fn at(&self, url: &str) -> Self {
        Self { url: url.into(), ..self.clone() }.reopened().await
    }

    /// The kind of every stored event, also of those that `event/list` still holds back on PostgreSQL.
    pub async fn kinds(&self) -> Vec<String> {
        let read = self.fleet.transaction(|tx| {
            Box::pin(async move {
                let rows = tx.query("select kind from event order by id", params![]).await?;
                rows.iter().map(|row| row.get("kind")).collect::<Result<Vec<String>>>()
            })
        });
        read.await.expect("events")
    }

    /// How often an event of this kind was logged.
    pub async fn times(&self, kind: &str) -> usize {
        self.kinds().await.iter().filter(|logged| *logged == kind).count()
    }
}

/// Options with limits that a slow machine does not reach.
pub fn patient() -> Options {
    let mut options = Options::default();
    options.call_limit = 2 * PATIENCE;
    options.idle_limit = 2 * PATIENCE;
    options.read_limit = 2 * PATIENCE;
    options
}

pub fn options(clock: &ManualClock) -> Options {
    let mut options = patient();
    // A waiter that is not woken must not find its item by the fallback: then the test could not fail.
    options.fallback.wake_all = Duration::MAX;
    options.clock = Clock::Manual(clock.clone());
    options
}

/// Claims up to this many messages for a run with a lease of 30 s, and returns the tokens.
pub async fn claim_mail(fleet: &Fleet, mailbox: &str, run: &str, count: i64) -> Result<Vec<String>> {
    let claim = mail::Claim {
        count: Some(count),
        ttl_ms: Some(Millis::seconds(30)),
        ..mail::Claim::next(mailbox, run)
    };
    Ok(fleet.call(claim).await?.claims.into_iter().map(|claimed| claimed.claim.token).collect())
}

/// The code of a refusal.
#[track_caller]
pub fn code<T: std::fmt::Debug>(result: Result<T>) -> Code {
    result.expect_err("a refusal").code()
}

#[track_caller]
pub fn refused<T: std::fmt::Debug>(result: Result<T>) -> Error {
    result.expect_err("a refusal")
}
