//! Many items in several calls. Each call is one transaction, so every call has as many items as fit.

pub mod others;
pub mod tasks;

/// As many items as one call takes.
const ITEMS: usize = 10_000;
/// As many bytes as one call should have: a server takes no more than 2 MiB unless its settings raise the limit.
const BYTES: usize = 1792 * 1024;
