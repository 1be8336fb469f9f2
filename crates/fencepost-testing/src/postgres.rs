//! The private PostgreSQL that `make test` starts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Its address, without a schema.
pub fn address() -> String {
    std::env::var("FENCE_TEST_POSTGRES").expect(
        "FENCE_TEST_POSTGRES is not set: run the tests with `make test`, which starts a private PostgreSQL",
    )
}

/// The address of a fleet in a schema.
pub fn url(schema: &str) -> String {
    format!("{}?schema={schema}&sslmode=disable", address())
}

/// A schema that no other test uses, also when several test runs share one PostgreSQL. The server keeps the schemas of
/// earlier runs, and process ids come again: hence a random part.
pub fn fresh_schema() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (process, random) = (std::process::id(), fastrand::u64(..));
    format!("t{process}_{random:016x}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
