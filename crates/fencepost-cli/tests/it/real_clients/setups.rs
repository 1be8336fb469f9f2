//! The other ways to set a client up: for the user or for the project, and strict.

use super::{
    guard::push,
    model::{fence, shell},
    world::{Claude, Codex, World},
};
use crate::with_each_client;
use serde_json::json;
use std::fs;

with_each_client! {
    /// Claude Code for the user, Codex for the project. A repository without a fleet is left alone.
    fn the_other_scope_works_too(client, program) {
        let world = World::new(client, program, vec![
            ("the work", vec![
                fence("claim", json!({ "board": "auth" })),
                push("first"),
                fence("finish", json!({ "how": "release", "note": "not today" })),
                push("second"),
            ]),
            ("elsewhere", vec![push("there")]),
        ]);
        world.ok(match client {
            Claude => &["setup", "claude", "--mcp", "--user"],
            Codex => &["setup", "codex", "--project"],
        });
        let file = world.path("home/.codex/config.toml");
        let trusted = format!("\n[projects.{}]\ntrust_level = \"trusted\"\n", json!(world.path("repo")));
        fs::write(&file, fs::read_to_string(&file).expect("its settings") + &trusted).expect("written");
        world.trust();
        world.add(1);
        world.session("do the work").succeeds();
        let result = |step| world.model.result("the work", step);
        assert_eq!(world.pushed(), ["first", "begin"], "{}", world.model.summary());
        assert!(result(3).contains("holds no claim any more"), "{}", result(3));
        assert_eq!(world.status("auth-1"), "unassigned");

        world.ok_sh("git clone -q ../remote.git ../other");
        world.session_in(&world.path("other"), "elsewhere", &["--sandbox", "danger-full-access"]).succeeds();
        assert_eq!(world.pushed(), ["there", "first", "begin"], "{}", world.model.summary());
        let shown = world.model.conversation("elsewhere").shown;
        assert!(!shown.contains("guarded command"), "{shown}");
        assert!(!world.path("other/.fence").exists());
    }

    /// With --strict a session that never claimed commits and pushes nothing; without, it is told.
    fn strict_blocks_a_session_that_never_claimed(client, program) {
        let world = World::new(client, program, vec![
            ("strictly", vec![
                shell("git commit -q --allow-empty -m first"),
                shell("git push -q"),
                fence("claim", json!({ "board": "auth" })),
                push("second"),
                fence("finish", json!({ "how": "done", "output": "ok" })),
            ]),
            ("loosely", vec![push("third")]),
        ]);
        world.ok(&[client.setup(), &["--strict"]].concat());
        world.trust();
        world.add(1);
        world.session("strictly").succeeds();
        let result = |step| world.model.result("strictly", step);
        for step in [0, 1] {
            assert!(result(step).contains("has claimed nothing"), "{}", result(step));
        }
        assert_eq!(world.pushed(), ["second", "begin"], "{}", world.model.summary());
        world.ok(client.setup());
        world.trust();
        world.session("loosely").succeeds();
        let shown = world.model.conversation("loosely").shown;
        assert!(shown.contains("this session has claimed nothing"), "{shown}");
        assert_eq!(world.pushed(), ["third", "second", "begin"]);
    }
}
