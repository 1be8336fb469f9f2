//! Imports go down only: the crate page lists the layers, and no module uses one below it in that list.

use fencepost_testing::layers::{self, UnitTests};
use std::{fs, path::Path};

#[test]
fn imports_go_down_only() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let page = fs::read_to_string(src.join("lib.rs")).expect("the crate page");
    // Lines such as ``//! - `output`: …``.
    let name = |line| Some(str::strip_prefix(line, "//! - `")?.split_once('`')?.0);
    let order: Vec<&str> = page.lines().filter_map(name).collect();
    layers::check(&src, &order, &[], UnitTests::Free);
}
