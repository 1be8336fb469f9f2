//! Limits on what callers may use, and the cache that spares the database repeated questions.

pub mod cache;
pub mod memory;
pub mod permits;
pub mod rate;
