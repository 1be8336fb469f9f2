//! Numbers for a board's new tasks, taken apart from the transactions that use them.
//!
//! A counter's row is locked until the commit, so all who add to one board would go in single file, through each
//! other's round trips and commits. When several of this process do so at once, they take their numbers on a connection
//! of its own instead, where a number is committed as soon as it is given: with 75 a second to one board, of ten callers on
//! two busy cores, the wait for it fell from 8.5 ms to 0.7. A number whose transaction then fails is not used by anyone.
//! Nor does such a commit wait for the disk: whatever uses the number is committed after it, and brings it along.

use super::{Session, Target, pool_of};
use crate::{error::Result, fleet::Options};
use deadpool_postgres::Pool;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Someone's transaction has the counter: it is waited for in ours, where PostgreSQL sees who waits for whom.
const PATIENCE: Duration = Duration::from_millis(250);
const CONNECTIONS: usize = 2;

/// Where numbers are taken, and how many of this process take some now.
#[derive(Clone)]
pub(super) struct Numbers {
    pool: Pool,
    taking: Arc<AtomicUsize>,
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
        target.config.options(&own);
        Ok(Self { pool: pool_of(&target, CONNECTIONS, options.call_limit)?, taking: Arc::default() })
    }

    async fn take(&self, board: &str, count: i64) -> Result<Option<i64>, tokio_postgres::Error> {
        let Ok(client) = self.pool.get().await else { return Ok(None) };
        let sql = "update board set next_n = next_n + $2 where name = $1 returning next_n - $2";
        let statement = client.prepare_cached(sql).await?;
        Ok(client.query_opt(&statement, &[&board, &count]).await?.map(|row| row.get(0)))
    }
}

impl Session {
    /// The first of so many numbers; `None` if they are to be taken in the transaction: nobody else here wants any, the
    /// board is not there yet, or somebody has the counter for long.
    pub(crate) async fn numbers(&self, board: &str, count: i64) -> Option<i64> {
        let Numbers { taking, .. } = &self.numbers;
        let others = taking.fetch_add(1, Ordering::SeqCst);
        let before = self
            .taking
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .replace(Taking(taking.clone()));
        if others == 0 || before.is_some() {
            return None;
        }
        self.stats.statement();
        self.stats.round_trip();
        self.numbers.take(board, count).await.ok().flatten()
    }
}
