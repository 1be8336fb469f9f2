//! Counters of one open fleet.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one open fleet.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    statements: AtomicU64,
    round_trips: AtomicU64,
    batches: AtomicU64,
    batched: AtomicU64,
    batch_sizes: [AtomicU64; 9],
    notifications: AtomicU64,
}

/// Counts of this process's work on the database since it opened the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub statements: u64,
    /// PostgreSQL: round trips to the server.
    pub round_trips: u64,
    /// SQLite: the writer's transactions, and the calls in them.
    pub batches: u64,
    pub batched: u64,
    /// Those transactions by their number of calls: at most 1, 2, 4, … 256. Each count leaves out the smaller sizes.
    pub batch_sizes: [u64; 9],
    /// PostgreSQL: notifications sent to other nodes.
    pub notifications: u64,
    /// Calls that made an attempt and are waiting now.
    pub waiting: u64,
}

impl Stats {
    pub fn statement(&self) {
        self.statements.fetch_add(1, Ordering::Relaxed);
    }
    pub fn round_trip(&self) {
        self.round_trips.fetch_add(1, Ordering::Relaxed);
    }
    pub fn batch(&self, calls: u64) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.batched.fetch_add(calls, Ordering::Relaxed);
        let size = calls.max(1).next_power_of_two().trailing_zeros() as usize;
        self.batch_sizes[size.min(self.batch_sizes.len() - 1)].fetch_add(1, Ordering::Relaxed);
    }
    pub fn notification(&self) {
        self.notifications.fetch_add(1, Ordering::Relaxed);
    }
    pub fn read(&self) -> Counts {
        Counts {
            statements: self.statements.load(Ordering::Relaxed),
            round_trips: self.round_trips.load(Ordering::Relaxed),
            batches: self.batches.load(Ordering::Relaxed),
            batched: self.batched.load(Ordering::Relaxed),
            batch_sizes: self.batch_sizes.each_ref().map(|size| size.load(Ordering::Relaxed)),
            notifications: self.notifications.load(Ordering::Relaxed),
            waiting: 0,
        }
    }
}
