//! A fleet of its own for every test, on either database, with a clock that stands still until it is moved.

use fencepost::{
    Clock, Code, Error, Fleet, ManualClock, Millis, Options, Result, Time, admin, claim, run, task,
};
pub use fencepost_testing::{
    PATIENCE,
    postgres::{fresh_schema, url as postgres_url},
};
use std::time::Duration;
use tokio::time::Instant;

/// Defines each test once and runs it on both databases.
#[macro_export]
macro_rules! on_both {
    ($($(#[$doc:meta])* async fn $name:ident($world:ident: World) $body:block)*) => {
        $($(#[$doc])* async fn $name($world: $crate::world::World) $body)*
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let world = $crate::world::World::sqlite().await;
                super::$name(world.clone()).await;
                world.assert_sound().await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let world = $crate::world::World::postgres().await;
                super::$name(world.clone()).await;
                world.assert_sound().await;
            })*
        }
    };
}

#[derive(Clone)]
pub struct World {
    pub fleet: Fleet,
    pub clock: ManualClock,
    pub url: String,
    _dir: Option<std::sync::Arc<tempfile::TempDir>>,
}

/// Every test begins here.
pub const START: &str = "2026-01-01T12:00:00Z";

impl World {
    pub async fn sqlite() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let url = dir.path().join("fence.db").display().to_string();
        Self::open(url, Some(dir.into())).await
    }

    pub async fn postgres() -> Self {
        Self::open(postgres_url(&fresh_schema()), None).await
    }

    async fn open(url: String, dir: Option<std::sync::Arc<tempfile::TempDir>>) -> Self {
        let clock = ManualClock::at(START.parse::<Time>().expect("a time"));
        let fleet = Fleet::open_with(&url, options(&clock)).await.expect("the fleet opens");
        Self { fleet, clock, url, _dir: dir }
    }

    /// The same fleet through connections of its own: another process, as far as the database can tell.
    pub async fn again(&self) -> Fleet {
        Fleet::open_with(&self.url, options(&self.clock)).await.expect("the fleet opens again")
    }

    pub fn is_postgres(&self) -> bool {
        self.url.starts_with("postgres")
    }

    pub fn pass(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    /// Time passes while the fleet is used: what may be forgotten after a while grows old only then. The same as a call in
    /// every hour.
    pub async fn pass_in_use(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
        let at = Clock::Manual(self.clock.clone()).read().0;
        let used = self.fleet.transaction(move |tx| {
            Box::pin(async move {
                tx.execute("update fleet set seen_at = ?1", fencepost::params![at]).await?;
                tx.execute("delete from gap where at = ?1", fencepost::params![at]).await
            })
        });
        used.await.expect("time passes");
    }

    /// Every promise holds over what is stored.
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

    /// Claims a task for a run with a lease of 30 s, and gives its token.
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

    pub async fn end(&self, run: &str) {
        self.fleet.call(run::End { run: run.into(), ..run::End::default() }).await.expect("ended");
    }

    /// The whole log as it is stored, a line each: `task.claimed task/auth-1 unassigned>in_progress r/bob @1`.
    /// (On PostgreSQL `event/list` holds back what is newer than the oldest transaction of any test.)
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

    /// This world through a fleet that is opened anew.
    pub async fn reopened(&self) -> Self {
        Self { fleet: self.again().await, ..self.clone() }
    }

    /// The fleet in another file, at the same time of day.
    pub async fn at(&self, url: &str) -> Self {
        Self { url: url.into(), ..self.clone() }.reopened().await
    }

    /// Every event's kind, as stored: also what a follower on PostgreSQL may not read yet, because some
    /// transaction of another test is still open.
    pub async fn kinds(&self) -> Vec<String> {
        let read = self.fleet.transaction(|tx| {
            Box::pin(async move {
                let rows = tx.query("select kind from event order by id", fencepost::params![]).await?;
                rows.iter().map(|row| row.get("kind")).collect::<Result<Vec<String>>>()
            })
        });
        read.await.expect("events")
    }

    /// How often this kind of event was logged.
    pub async fn times(&self, kind: &str) -> usize {
        self.kinds().await.iter().filter(|logged| *logged == kind).count()
    }
}

/// Waits until it is so.
pub async fn eventually(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so().await {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// No call gives up because the machine is slow.
pub fn patient() -> Options {
    let mut options = Options::default();
    options.call_limit = 2 * PATIENCE;
    options.idle_limit = 2 * PATIENCE;
    options.read_limit = 2 * PATIENCE;
    options
}

pub fn options(clock: &ManualClock) -> Options {
    let mut options = patient();
    // Who was not woken does not look all the same before the test's patience is over.
    options.fallback.wake_all = Duration::MAX;
    options.clock = Clock::Manual(clock.clone());
    options
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
