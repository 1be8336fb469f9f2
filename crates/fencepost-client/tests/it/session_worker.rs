//! The example, as a user would run it.

use std::{path::Path, process::Command};

#[test]
fn the_session_worker_survives_every_fault_and_stores_everything_once() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
    let cargo = std::env::var("CARGO").expect("tests are run by cargo");
    let mut example = Command::new(cargo);
    example.args(["run", "-q", "--example", "session_worker"]).current_dir(root);
    // Cargo sets these variables for a test. With them `ring`'s build script would run again, and everything that needs
    // `ring` would be rebuilt for a minute.
    for (name, _) in std::env::vars() {
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            example.env_remove(name);
        }
    }
    let ran = example.output().expect("cargo runs");
    let (output, errors) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{output}{errors}");
    for event in [
        "hook: 24 messages are in session/42",
        "a response to prompt 4 came, and none to prompt 3;",
        "a response to prompt 3 came, and that prompt is not outstanding;",
        "stopped before claiming, at ",
        "worker 3 was killed with ",
    ] {
        assert!(output.contains(event), "{event:?} is not in:\n{output}");
    }
    let killed = output.lines().find(|line| line.contains("was killed with")).unwrap_or_default();
    assert!(!killed.contains(" 0 in flight"), "{killed}");
    let summary = "24 messages, each with its observations, once; 24 processed, 0 in flight, 0 pending";
    assert_eq!(output.lines().last(), Some(summary), "{output}");
}
