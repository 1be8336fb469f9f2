//! Codex runs only the hooks that its user trusts.

use super::{
    guard::push,
    model::shell,
    world::{Client, World},
};
use std::path::PathBuf;

mod codex {
    crate::with_client!(Codex, hooks_that_are_not_trusted_are_reported);
}

/// Codex skips hooks that its user has not trusted, and says nothing; `fence doctor` does.
fn hooks_that_are_not_trusted_are_reported(client: Client, program: PathBuf) {
    let world = World::new(
        client,
        program,
        vec![("the work", vec![shell("fence claim --quiet && fence release --note none"), push("first")])],
    );
    world.ok(client.setup());
    world.add(1);
    let doctor = || world.fence(&["doctor"]).out;
    assert!(doctor().contains("Codex skips hooks of"), "{}", doctor());
    world.session("do the work").succeeds();
    assert_eq!(world.pushed(), ["first", "begin"], "{}", world.model.summary());
    world.trust();
    assert!(doctor().contains("Codex runs the hooks of"), "{}", doctor());
    world.session("do the work").succeeds();
    let denied = world.model.requests("the work").last().expect("a request").results[1].clone();
    assert!(denied.contains("holds no claim any more"), "{denied}");
    assert_eq!(world.pushed(), ["first", "begin"]);
}
