//! Allocates numbers from a counter (a board's next task) outside of the transactions that use them.
//!
//! A transaction locks a counter's row until it commits, so calls that add to one board would wait for each other's
//! round trips and commits. When several calls of this process do so at once, they allocate their numbers on a separate
//! connection instead, where an allocation commits at once: 16 callers then add 822 tasks a second to one board instead
//! of 285 (a build without optimisation, two cores). The numbers of a transaction that fails stay unused. An allocation
//! does not wait for the disk: the transaction that uses the numbers commits after it, and makes both durable.

use super::{Session, Target, notifier::NAME_MAX, pool_error, pool_of, postgres_error};
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

/// The longest wait for a counter that a transaction has locked. After it the call waits in its own transaction, where
/// PostgreSQL can detect a deadlock.
const LOCK_LIMIT: Duration = Duration::from_millis(250);
/// The longest that one allocation may take, with a new connection.
const LIMIT: Duration = Duration::from_secs(1);
/// After a failed allocation, all calls allocate in their transactions for this long.
const DISABLED_FOR: Duration = Duration::from_secs(5);
const CONNECTIONS: usize = 2;

/// The connections for allocations, and how many calls of this process allocate numbers now.
#[derive(Clone)]
pub(super) struct NumberAllocator {
    pool: Pool,
    in_flight: Arc<AtomicUsize>,
    disabled_until: Arc<Mutex<Option<Instant>>>,
}

/// One call that allocates numbers, until its transaction is over.
pub(super) struct InFlight(Arc<AtomicUsize>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl NumberAllocator {
    pub fn new(target: &Target, options: &Options) -> Result<Self> {
        let mut target = target.clone();
        let given = target.config.get_options().unwrap_or_default();
        let own = format!("{given} -c synchronous_commit=off -c lock_timeout={}", LOCK_LIMIT.as_millis());
        // The name tells an operator the purpose of this connection.
        let name: String = format!("fence_numbers {}", target.schema).chars().take(NAME_MAX).collect();
        target.config.options(&own).application_name(&name);
        let pool = pool_of(&target, CONNECTIONS, options.call_limit)?;
        Ok(Self { pool, in_flight: Arc::default(), disabled_until: Arc::default() })
    }

    async fn allocate(&self, counter: &Stmt) -> Result<Option<i64>> {
        let client = self.pool.get().await.map_err(pool_error)?;
        let statement = client.prepare_cached(&to_postgres(counter.sql)).await.map_err(postgres_error)?;
        let params: Vec<&(dyn ToSql + Sync)> = counter.params.iter().map(|param| param as _).collect();
        let first = client.query_opt(&statement, &params).await.map_err(postgres_error)?;
        Ok(first.map(|row| row.get(0)))
    }
}

impl Session {
    /// Allocates numbers by this statement, and returns the first. `None` if the call must allocate them in its
    /// transaction: no other call here allocates any now, the counter does not exist yet, or an allocation failed a
    /// moment ago.
    pub(crate) async fn allocate_numbers(&self, counter: &Stmt) -> Option<i64> {
        let NumberAllocator { in_flight, disabled_until, .. } = &self.allocator;
        let others = in_flight.fetch_add(1, Ordering::SeqCst);
        let before = lock(&self.allocating).replace(InFlight(in_flight.clone()));
        // Real time: it paces attempts, and decides no lease.
        let is_disabled = lock(disabled_until).is_some_and(|until| Instant::now() < until);
        if others == 0 || before.is_some() || is_disabled {
            return None;
        }
        self.stats.statement();
        self.stats.round_trip();
        match timeout(LIMIT, self.allocator.allocate(counter)).await {
            Ok(Ok(first)) => first,
            failed => {
                tracing::debug!(
                    "numbers are allocated in their transactions for {DISABLED_FOR:?}: {failed:?}"
                );
                *lock(disabled_until) = Some(Instant::now() + DISABLED_FOR);
                None
            }
        }
    }
}
