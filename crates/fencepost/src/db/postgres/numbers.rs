//! Numbers from a counter (a board's next task), taken apart from the transactions that use them.
//!
//! A counter's row is locked until the commit, so all who add to one board would go in single file, through each
//! other's round trips and commits. When several of this process do so at once, they take their numbers on a connection
//! of its own instead, where a number is committed as soon as it is given: 16 callers then add 822 tasks a second to one
//! board instead of 285 (a build without optimisation, two cores). A number whose transaction then fails is not used by anyone.
//! Nor does such a commit wait for the disk: whatever uses the number is committed after it, and brings it along.

use super::{Session, Target, notice::NAME_MAX, pool_error, pool_of, postgres_error};
use crate::{
    db::{Stmt, dialect::to_postgres, options::Options},
    error::Result,
    sync::lock,
};
use deadpool_postgres::Pool;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::{Instant, timeout};
use tokio_postgres::types::ToSql;

/// Someone's transaction has the counter: it is waited for in ours, where PostgreSQL sees who waits for whom.
const PATIENCE: Duration = Duration::from_millis(250);
/// All that one taking may last, a new connection included.
const LIMIT: Duration = Duration::from_secs(1);
/// After one that came to nothing all are taken in their transactions, for this long.
const REST: Duration = Duration::from_secs(5);
const CONNECTIONS: usize = 2;

/// Where numbers are taken, and how many of this process take some now.
#[derive(Clone)]
pub(super) struct Numbers {
    pool: Pool,
    taking: Arc<AtomicUsize>,
    rests_until: Arc<Mutex<Option<Instant>>>,
}

/// One who takes numbers, until its transaction is over.
pub(super) struct Taking(Arc<AtomicUsize>);

impl Drop for Taking {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Numbers {
    pub fn new(target: &Target, options: &Options) -> Result<Self> {
        let mut target = target.clone();
        let given = target.config.get_options().unwrap_or_default();
        let own = format!("{given} -c synchronous_commit=off -c lock_timeout={}", PATIENCE.as_millis());
        // So that who looks at the server's connections knows what this one is for.
        let name: String = format!("fence_numbers {}", target.schema).chars().take(NAME_MAX).collect();
        target.config.options(&own).application_name(&name);
        let pool = pool_of(&target, CONNECTIONS, options.call_limit)?;
        Ok(Self { pool, taking: Arc::default(), rests_until: Arc::default() })
    }

    async fn take(&self, counter: &Stmt) -> Result<Option<i64>> {
        let client = self.pool.get().await.map_err(pool_error)?;
        let statement = client.prepare_cached(&to_postgres(counter.sql)).await.map_err(postgres_error)?;
        let params: Vec<&(dyn ToSql + Sync)> = counter.params.iter().map(|param| param as _).collect();
        let taken = client.query_opt(&statement, &params).await.map_err(postgres_error)?;
        Ok(taken.map(|row| row.get(0)))
    }
}

impl Session {
    /// The first of the numbers that this statement takes from a counter. `None` if they are to be taken in the
    /// transaction: nobody else here wants any, the counter is not there yet, or taking them failed a moment ago.
    pub(crate) async fn allocate_numbers(&self, counter: &Stmt) -> Option<i64> {
        let Numbers { taking, .. } = &self.numbers;
        let others = taking.fetch_add(1, Ordering::SeqCst);
        let before = lock(&self.taking).replace(Taking(taking.clone()));
        // Real time: it paces tries, and decides nothing.
        let rests = lock(&self.numbers.rests_until).is_some_and(|until| Instant::now() < until);
        if others == 0 || before.is_some() || rests {
            return None;
        }
        self.stats.statement();
        self.stats.round_trip();
        match timeout(LIMIT, self.numbers.take(counter)).await {
            Ok(Ok(first)) => first,
            missed => {
                tracing::debug!("numbers are not taken apart for {REST:?}: {missed:?}");
                *lock(&self.numbers.rests_until) = Some(Instant::now() + REST);
                None
            }
        }
    }
}
