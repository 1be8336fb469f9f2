//! Has the linker write down what is in the release binary, which itself has no symbols: `make size` reads that.

use std::{env, path::Path};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |variable: &str, value: &str| env::var(variable).is_ok_and(|set| set == value);
    // Other systems' linkers have another option for it.
    if !is("PROFILE", "release") || !is("CARGO_CFG_TARGET_OS", "linux") {
        return;
    }
    let out = env::var("OUT_DIR").expect("cargo sets it");
    // …/release/build/fencepost-cli-…/out
    if let Some(release) = Path::new(&out).ancestors().nth(3) {
        println!("cargo::rustc-link-arg-bins=-Wl,-Map={}", release.join("fence.map").display());
    }
}
