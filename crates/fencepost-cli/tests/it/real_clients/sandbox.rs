//! Codex in its sandbox: commands can write only below the work tree and connect to nothing; MCP servers run outside of it.

use super::{
    model::{Step, fence, shell},
    world::{Client, World},
};
use serde_json::json;
use std::{fs, path::PathBuf};

mod codex {
    crate::with_client!(Codex, the_shell_works_in_the_main_checkout);
    crate::with_client!(Codex, a_work_tree_elsewhere);
    crate::with_client!(Codex, a_server);
}

const SANDBOX: [&str; 2] = ["--sandbox", "workspace-write"];

/// Sets Codex up. The world is in a directory for temporary files, which commands may write in other sandboxes.
fn outside_of_tmp(world: &World) {
    let file = world.path("home/.codex/config.toml");
    let config = fs::read_to_string(&file).expect("its settings");
    let table = "\n[sandbox_workspace_write]\nexclude_slash_tmp = true\nexclude_tmpdir_env_var = true\n";
    fs::write(&file, config + table).expect("written");
    world.add(2);
    world.ok(world.client.setup());
    world.trust();
}

/// A task by a tool of MCP.
fn by_tool() -> [Step; 2] {
    [
        fence("claim", json!({ "task": "auth-2" })),
        fence("finish", json!({ "how": "done", "output": "by a tool" })),
    ]
}

fn by_shell() -> [Step; 2] {
    [shell("fence claim --keep auth-1"), shell("fence done --output 'by the shell'")]
}

/// Is the work tree read-only where it must be? Otherwise there is no sandbox, and the test shows nothing.
fn is_sandboxed() -> Step {
    shell("touch ../outside .git/inside; echo exit $?")
}

#[track_caller]
fn says_that_it_is_a_sandbox(text: &str) {
    for part in ["Codex's sandbox", "fence mcp", "fence setup codex"] {
        assert!(text.contains(part), "{text}");
    }
}

fn the_shell_works_in_the_main_checkout(client: Client, program: PathBuf) {
    let steps = [&[is_sandboxed()][..], &by_shell(), &by_tool()].concat();
    let world = World::new(client, program, vec![("the work", steps)]);
    outside_of_tmp(&world);
    world.session_in(&world.path("repo"), "the work", &SANDBOX).succeeds();
    let first = world.model.result("the work", 0);
    assert!(
        first.contains("exit 1") && first.contains("../outside") && first.contains("Read-only"),
        "{first}"
    );
    // Nothing outlives a command there.
    let kept = world.model.result("the work", 1);
    assert!(kept.contains("task/auth-1@1") && kept.contains("so no keeper renews the run"), "{kept}");
    let summary = world.model.summary();
    assert_eq!([world.status("auth-1"), world.status("auth-2")], ["completed", "completed"], "{summary}");
}

/// After `fence setup codex` in the main checkout, commands reach the fleet from a work tree elsewhere. Without it the error explains
/// why they do not.
fn a_work_tree_elsewhere(client: Client, program: PathBuf) {
    let steps = [&by_shell()[..], &by_tool()].concat();
    let world = World::new(client, program, vec![("the work", steps)]);
    world.ok_sh("git worktree add -q ../tree -b other");
    outside_of_tmp(&world);
    let file = world.path("home/.codex/config.toml");
    let config = fs::read_to_string(&file).expect("its settings");
    let root = world.path("repo/.fence").display().to_string();
    assert!(config.contains(&root), "{config}");
    fs::write(&file, config.replace(&root, "/nowhere")).expect("written");
    world.session_in(&world.path("tree"), "the work", &SANDBOX).succeeds();
    let result = |step| world.model.result("the work", step);
    says_that_it_is_a_sandbox(&result(0));
    says_that_it_is_a_sandbox(&result(1));
    let summary = world.model.summary();
    assert_eq!([world.status("auth-1"), world.status("auth-2")], ["unassigned", "completed"], "{summary}");

    world.ok(&["reopen", "auth-2"]);
    fs::write(&file, config).expect("written");
    world.session_in(&world.path("tree"), "the work", &SANDBOX).succeeds();
    let summary = world.model.summary();
    assert_eq!([world.status("auth-1"), world.status("auth-2")], ["completed", "completed"], "{summary}");
}

fn a_server(client: Client, program: PathBuf) {
    let steps = [&by_shell()[..], &by_tool()].concat();
    let (world, _server) = World::served(client, program, vec![("the work", steps)]);
    outside_of_tmp(&world);
    world.session_in(&world.path("repo"), "the work", &SANDBOX).succeeds();
    says_that_it_is_a_sandbox(&world.model.result("the work", 0));
    let summary = world.model.summary();
    assert_eq!([world.status("auth-1"), world.status("auth-2")], ["unassigned", "completed"], "{summary}");
}
