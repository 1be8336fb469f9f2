//! `fence`, built together with the chaos tool. See the feature `chaos-clock` of the engine.

use std::process::ExitCode;

fn main() -> ExitCode {
    fencepost_cli::main()
}
