//! Helpers that the tests of several crates share. It uses none of our crates, so that each of them can use it.

pub mod layers;
pub mod postgres;

use std::time::Duration;

/// Far longer than anything takes that a test waits for: only a broken test waits for so long.
pub const PATIENCE: Duration = Duration::from_secs(60);
