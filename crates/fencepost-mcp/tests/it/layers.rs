//! Imports go down only: a module uses the modules that stand above it in `src/lib.rs`.

use fencepost_testing::layers::{self, UnitTests};
use std::path::Path;

#[test]
fn imports_go_down_only() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let order = layers::declared(&src);
    layers::check(&src, &order.iter().map(String::as_str).collect::<Vec<_>>(), &[], UnitTests::Layered);
}
