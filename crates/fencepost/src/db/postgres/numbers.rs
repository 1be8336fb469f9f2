//! Numbers for a board's new tasks, taken apart from the transactions that use them.
//!
//! A counter's row is locked until the commit, so all who add to one board would go in single file, through each
//! other's round trips and commits. When several of this process do so at once, they take their numbers on a connection
//! of its own instead, where a number is committed as soon as it is given: 16 callers then add 822 tasks a second to one
//! board instead of 285 (a build without optimisation, two cores). A number whose transaction then fails is not used by anyone.
//! Nor does such a commit wait for the disk: whatever uses the number is committed after it, and brings it along.

use super::{Session, Target, notice::NAME_MAX, pool_error, pool_of, postgres_error};
use crate::{engine::fleet::Options, error::Result};
use deadpool_postgres::Pool;
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::{Instant, timeout};

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

    fn rest(&self) -> MutexGuard<'_, Option<Instant>> {
        self.rests_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn take(&self, board: &str, count: i64) -> Result<Option<i64>> {
        let client = self.pool.get().await.map_err(pool_error)?;
        let sql = "update board set next_n = next_n + $2 where name = $1 returning next_n - $2";
        let statement = client.prepare_cached(sql).await.map_err(postgres_error)?;
        let taken = client.query_opt(&statement, &[&board, &count]).await.map_err(postgres_error)?;
        Ok(taken.map(|row| row.get(0)))
    }
}

impl Session {
    /// The first of so many numbers; `None` if they are to be taken in the transaction: nobody else here wants any, the
    /// board is not there yet, or it did not go well a moment ago.
    pub(crate) async fn numbers(&self, board: &str, count: i64) -> Option<i64> {
        let Numbers { taking, .. } = &self.numbers;
        let others = taking.fetch_add(1, Ordering::SeqCst);
        let own = Some(Taking(taking.clone()));
        let before = std::mem::replace(&mut *self.taking.lock().unwrap_or_else(PoisonError::into_inner), own);
        // Real time: it paces tries, and decides nothing.
        let rests = self.numbers.rest().is_some_and(|until| Instant::now() < until);
        if others == 0 || before.is_some() || rests {
            return None;
        }
        self.stats.statement();
        self.stats.round_trip();
        match timeout(LIMIT, self.numbers.take(board, count)).await {
            Ok(Ok(first)) => first,
            missed => {
                tracing::debug!("numbers are not taken apart for {REST:?}: {missed:?}");
                *self.numbers.rest() = Some(Instant::now() + REST);
                None
            }
        }
    }
}
