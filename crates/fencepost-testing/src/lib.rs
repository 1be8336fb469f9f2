//! Helpers that the tests of several crates share.
//!
//! The engine's unit tests use only [`postgres`] and [`PATIENCE`]: to them this crate's `fencepost` is another crate than
//! their own, so its types do not match.

pub mod layers;
pub mod postgres;
pub mod sample_fleet;
pub mod story;
pub mod world;

pub use world::World;

use std::time::Duration;
use tokio::time::Instant;

/// Far longer than anything that a test waits for. Only a broken test waits for so long.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until the condition holds. Fails after [`PATIENCE`].
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
