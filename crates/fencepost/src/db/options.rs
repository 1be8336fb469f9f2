//! Settings of an open fleet.

use crate::clock::Clock;
use std::time::Duration;

/// How commits reach the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Every commit is on the disk before it is acknowledged.
    #[default]
    Full,
    /// SQLite only: faster, and a power cut can undo the last commits. (A crash of the process cannot.) Fences
    /// still never repeat: they jump ahead at the next start.
    Normal,
}

impl Durability {
    pub(crate) fn pragma(self) -> &'static str {
        match self {
            Durability::Full => "full",
            Durability::Normal => "normal",
        }
    }
}

/// Settings of an open fleet. The defaults are meant to be right.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    pub clock: Clock,
    pub durability: Durability,
    /// Create the fleet if it does not exist.
    pub create: bool,
    /// Migrate an older schema. Without it, a fleet with an older schema is refused.
    pub migrate: bool,
    /// SQLite: the most reads at the same time.
    pub readers: usize,
    /// PostgreSQL: connections in the pool. One more listens while a call waits, and up to two allocate numbers while
    /// several calls add tasks.
    pub connections: usize,
    /// The longest that one call may wait for the database.
    pub call_limit: Duration,
    /// PostgreSQL: the longest pause between two statements of one transaction. The server ends a transaction that
    /// pauses longer, so that a frozen process keeps no row locked.
    pub idle_limit: Duration,
    /// SQLite: the longest that one read may take. A read keeps the write-ahead log from being reused.
    pub read_limit: Duration,
    /// SQLite: the size of the write-ahead log, in bytes, past which it is truncated.
    pub wal_limit: u64,
    /// SQLite: the largest size of the database, in pages of 4 KiB.
    pub max_pages: Option<u32>,
    /// Stop migrating at this version. For tests of migrations.
    #[doc(hidden)]
    pub schema_version: Option<i64>,
    /// PostgreSQL: how waiters find news when a notification is lost.
    pub fallback: Fallback,
}

/// PostgreSQL: how waiters find news when a notification is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fallback {
    /// How often the watcher asks the log for news. While no notification can arrive it asks 6 to 600 times as often.
    pub poll: Duration,
    /// How often one waiter of each kind tries again although there is no news. A claim skips an item that another
    /// transaction has locked; if that transaction rolls back because its node died, no event announces the free item.
    pub wake_all: Duration,
}

impl Default for Fallback {
    fn default() -> Self {
        Self { poll: Duration::from_secs(3), wake_all: Duration::from_secs(10) }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Clock::System,
            durability: Durability::Full,
            create: true,
            migrate: true,
            readers: 4,
            connections: 16,
            call_limit: Duration::from_secs(30),
            idle_limit: Duration::from_secs(10),
            read_limit: Duration::from_secs(10),
            wal_limit: 64 * 1024 * 1024,
            max_pages: None,
            schema_version: None,
            fallback: Fallback::default(),
        }
    }
}
