//! Imports go down only: a module uses the modules before it in this list, and none after.

use fencepost_testing::layers::{self, UnitTests};
use std::path::Path;

/// From the bottom up.
const LAYERS: [&str; 18] = [
    "error", "address", "files", "hidden", "clock", "sync", "backoff", "tls", "json", "limits", "ids",
    "topic", "caller", "db", "log", "lease", "engine", "ops",
];

#[test]
fn imports_go_down_only() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    layers::check(&src, &LAYERS, &["params", "Value"], UnitTests::Layered);
}
