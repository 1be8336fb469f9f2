//! The plugin for Claude Code in this repository.

use super::{
    guard::push,
    model::{fence, shell},
    world::{Client, Session, World},
};
use crate::sealed::finished;
use serde_json::json;
use std::path::{Path, PathBuf};

mod claude {
    crate::with_client!(Claude, the_plugin_is_valid_and_works);
}

fn the_plugin_is_valid_and_works(client: Client, program: PathBuf) {
    let world = World::new(
        client,
        program,
        vec![(
            "the work",
            vec![
                shell("fence whoami --json"),
                fence("claim", json!({ "board": "auth" })),
                push("first"),
                push("second").behind("before the second push"),
            ],
        )],
    );
    let repository =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository");
    let plugin = repository.join(".claude-plugin/fence");
    for path in [&repository, &plugin] {
        let validated =
            finished(world.client_command().args(["plugin", "validate"]).arg(path).output().expect("claude"));
        assert_eq!(validated.code, 0, "{validated:?}");
    }
    world.add(1);
    let mut command = world.client_command();
    command.arg("--plugin-dir").arg(plugin).args([
        "-p",
        "do the work",
        "--allowedTools",
        "Bash,mcp__plugin_fence_fence",
    ]);
    let session = Session::start(command);
    world.model.reached("before the second push");
    let claims = world.claims();
    assert!(world.model.result("the work", 0).contains(&claims[0].0), "{claims:?}");
    world.ok(&["unclaim", "task/auth-1"]);
    world.model.open("before the second push");
    session.succeeds();
    let denied = world.model.result("the work", 3);
    assert!(denied.contains("lost claim task/auth-1@1"), "{denied}");
    assert_eq!(world.pushed(), ["first", "begin"]);
}
