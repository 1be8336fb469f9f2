//! `fence setup`: entries of ours in the settings of clients, and nothing else.

use crate::sealed::{Finished, Sealed, finished};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    os::unix::fs::{DirBuilderExt, PermissionsExt, symlink},
    path::Path,
    process::{Command, Stdio},
};

/// A repository with a fleet, and a home directory that is not the repository.
pub fn world() -> Sealed {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    // Others could write there under umask 002, and then the hooks would use /tmp.
    fs::DirBuilder::new().mode(0o700).create(sealed.path().join("home")).expect("made");
    sealed
}

pub fn fence(sealed: &Sealed, words: &[&str]) -> Command {
    let mut command = sealed.command("fence");
    command.env("HOME", sealed.path().join("home")).args(words).stdin(Stdio::null());
    command
}

pub fn run(sealed: &Sealed, words: &[&str]) -> Finished {
    let said = finished(fence(sealed, words).output().expect("fence"));
    let here = fs::canonicalize(sealed.path()).expect("the directory").display().to_string();
    Finished { out: said.out.replace(&here, "HERE"), err: said.err.replace(&here, "HERE"), ..said }
}

#[track_caller]
pub fn ok(sealed: &Sealed, words: &[&str]) -> String {
    let said = run(sealed, words);
    assert_eq!(said.code, 0, "fence {words:?}: {said:?}");
    said.out
}

pub fn write(sealed: &Sealed, name: &str, text: &str) {
    let path = sealed.path().join(name);
    fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    fs::write(path, text).expect("written");
}

pub fn read(sealed: &Sealed, name: &str) -> String {
    fs::read_to_string(sealed.path().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Every file with its bytes and mode, and every directory, without git's and the fleet's.
fn tree(sealed: &Sealed) -> BTreeMap<String, (u32, Vec<u8>)> {
    fn walk(root: &Path, directory: &Path, found: &mut BTreeMap<String, (u32, Vec<u8>)>) {
        for entry in fs::read_dir(directory).expect("listed").flatten() {
            let path = entry.path();
            let name = path.strip_prefix(root).expect("below it").display().to_string();
            if name == ".git" || name == ".fence" {
                continue;
            }
            let about = fs::symlink_metadata(&path).expect("there");
            let bytes = if about.is_file() { fs::read(&path).expect("read") } else { Vec::new() };
            found.insert(name, (about.permissions().mode(), bytes));
            if about.is_dir() {
                walk(root, &path, found);
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(sealed.path(), sealed.path(), &mut found);
    found
}

/// Settings as people and programs leave them.
const SETTINGS: [&str; 7] = [
    "{}",
    "",
    "\u{feff}{\r\n\t\"model\": \"opus\", // the best\r\n\t\"hooks\": {\r\n\t},\r\n}",
    "{\"hooks\":{\"PreToolUse\":[{\"matcher\":\"Bash\",\"hooks\":[{\"type\":\"command\",\"command\":\"check\"}]}]},\"permissions\":{\"allow\":[]}}",
    "/* ours */ { \"permissions\": { \"allow\": [ \"Bash(ls)\" , ] } }\n\n",
    "{\n    \"hooks\": {\n        // Nobody stops.\n        \"Stop\": [\n            { \"hooks\": [ { \"type\": \"command\", \"command\": \"say \\\"}\\\"\" } ] } // loud\n        ]\n    }\n}\n",
    "{\n  \"hooks\": { \"Stop\": [] },\n  \"mcpServers\": { \"other\": { \"command\": \"x\" } }, \"sandbox\": {}\n}",
];

#[test]
fn a_removal_restores_every_byte() {
    let sealed = world();
    let pages = ["# Rules\n\nBe kind.\n", "no line end", "", "a\r\nb\r\n"];
    let tables = [
        "model = \"o3\" # best\n\n[sandbox_workspace_write]\nwritable_roots = [\n  \"/x\", # x\n]\n",
        "[mcp_servers.other]\ncommand = 'x'",
        "",
        "[sandbox_workspace_write]\r\nnetwork_access = true\r\n",
    ];
    for (at, settings) in SETTINGS.iter().enumerate() {
        let of = |all: &[&'static str]| all[at % all.len()];
        for file in [".claude/settings.json", ".claude/settings.local.json", ".mcp.json", ".codex/hooks.json"]
        {
            write(&sealed, file, settings);
        }
        write(&sealed, ".codex/config.toml", of(&tables));
        write(&sealed, "CLAUDE.md", of(&pages));
        write(&sealed, "AGENTS.md", of(&pages));
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(sealed.path().join(".claude/settings.json"), private).expect("set");
        let before = tree(&sealed);
        for words in [
            &["setup", "claude"][..],
            &["setup", "claude", "--mcp", "--strict"],
            &["setup", "claude", "--board", "auth"],
            &["setup", "codex", "--strict"],
            &["setup", "agents-md"],
        ] {
            let shown = ok(&sealed, &[words, &["--dry-run"]].concat());
            assert!(shown.contains("would change  HERE/") && tree(&sealed) == before, "{settings}: {shown}");
            let said = run(&sealed, words);
            // Clients ignore files with comments.
            let is_plain = settings.is_empty() || serde_json::from_str::<Value>(settings).is_ok();
            let has_json = words[1] != "agents-md";
            assert_eq!(
                (said.code, said.err.contains("is not plain JSON")),
                (0, has_json && !is_plain),
                "{said:?}"
            );
            let with = tree(&sealed);
            assert_ne!(with, before, "{settings}");
            assert_eq!(ok(&sealed, words), "nothing to change", "{settings}");
            assert_eq!(tree(&sealed), with, "{settings}");
            let checked = run(&sealed, &["setup", "--check", words[1]]);
            assert_eq!(checked.code, i32::from(has_json && !is_plain), "{settings}: {checked:?}");
            assert_eq!(checked.out.contains("ignored"), has_json && !is_plain, "{settings}: {checked:?}");
            assert!(!checked.out.contains("stale"), "{settings}: {checked:?}");
            ok(&sealed, &["setup", words[1], "--remove"]);
            assert_eq!(tree(&sealed), before, "{settings}: {words:?}");
        }
        // One after another, without a removal between them.
        for words in [&["claude", "--mcp"][..], &["codex"], &["claude"], &["claude", "--mcp", "--board", "b"]]
        {
            ok(&sealed, &[&["setup"], words].concat());
        }
        ok(&sealed, &["setup", "claude", "--remove"]);
        ok(&sealed, &["setup", "codex", "--remove"]);
        assert_eq!(tree(&sealed), before, "{settings}");
    }
}

#[test]
fn without_files_a_removal_leaves_none() {
    let sealed = world();
    let before = tree(&sealed);
    for recipe in ["claude", "codex", "agents-md"] {
        for options in [&[][..], &["--mcp"], &["--user"]] {
            if (recipe, options) == ("agents-md", &["--user"]) {
                continue;
            }
            ok(&sealed, &[&["setup", recipe], options].concat());
            assert_ne!(tree(&sealed), before, "{recipe} {options:?}");
            let only: &[&str] = if options == ["--user"] { options } else { &[] };
            ok(&sealed, &[&["setup", recipe, "--remove"], only].concat());
            assert_eq!(tree(&sealed), before, "{recipe} {options:?}");
        }
    }
    assert_eq!(ok(&sealed, &["setup", "claude", "--remove"]), "nothing to change");
    let none = run(&sealed, &["setup", "agents-md", "--user"]);
    assert_eq!(
        (none.code, none.err.lines().next()),
        (1, Some("error: recipe `agents-md` has nothing for --user"))
    );
}

#[test]
fn others_change_the_files_between() {
    let sealed = world();
    let hook =
        |command: &str| format!("{{ \"hooks\": [{{ \"type\": \"command\", \"command\": \"{command}\" }}] }}");
    let theirs = format!("{{\n  \"hooks\": {{\n    \"Stop\": [\n      {}\n    ]\n  }}\n}}\n", hook("first"));
    write(&sealed, ".claude/settings.json", &theirs);
    write(&sealed, "CLAUDE.md", "# Ours\n");
    ok(&sealed, &["setup", "claude"]);
    // A hook after ours in the same list, a key at the end, and a line after our lines.
    let with = read(&sealed, ".claude/settings.json");
    let stop = with.find("hook stop --client claude").expect("our hook");
    let end = stop + with[stop..].find("\n    ]").expect("the end of the list");
    let more = format!("{},\n      {}{}", &with[..end], hook("last"), &with[end..]);
    let more = more.strip_suffix("\n}\n").expect("the end").to_owned() + ",\n  \"model\": \"opus\"\n}\n";
    write(&sealed, ".claude/settings.json", &more);
    write(&sealed, "CLAUDE.md", &(read(&sealed, "CLAUDE.md") + "\nMore.\n"));
    assert_eq!(ok(&sealed, &["setup", "claude"]), "nothing to change");
    ok(&sealed, &["setup", "claude", "--remove"]);
    let list = format!("      {},\n      {}\n    ]", hook("first"), hook("last"));
    let left = format!("{{\n  \"hooks\": {{\n    \"Stop\": [\n{list}\n  }},\n  \"model\": \"opus\"\n}}\n");
    assert_eq!(read(&sealed, ".claude/settings.json"), left);
    assert_eq!(read(&sealed, "CLAUDE.md"), "# Ours\n\nMore.\n");
    assert!(!sealed.path().join(".claude/skills").exists());
}

#[test]
fn missing_stale_and_current() {
    let sealed = world();
    let states = |words: &[&str]| {
        let said = run(&sealed, &[&["setup", "--check"], words].concat());
        let lines = said.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        (said.code, lines.collect::<Vec<_>>())
    };
    assert_eq!(states(&["agents-md"]), (1, vec!["agents-md missing HERE/AGENTS.md".into()]));
    assert_eq!(states(&[]).0, 1, "nothing is installed");
    ok(&sealed, &["setup", "claude", "--strict"]);
    let files = [".claude/settings.json", ".claude/skills/fence/SKILL.md", "CLAUDE.md"];
    let all = |state: &str| files.map(|file| format!("claude {state} HERE/{file}")).to_vec();
    assert_eq!(states(&["claude"]), (0, all("current")));
    assert_eq!(states(&[]).0, 0, "recipes that are not installed do not count");
    assert_eq!(states(&["codex"]).0, 1);
    assert_eq!(states(&["claude", "--mcp"]).0, 1, "installed without");
    // An older version wrote another line, a hook for an event that is not wanted, and two of one.
    let current = tree(&sealed);
    let text = read(&sealed, ".claude/settings.json");
    let older =
        |program: &str| format!("\"sh -c ': fence setup; exit 1' {program} hook stop --client claude\"");
    let moved = older(&sealed.path().join("home/old/fence").display().to_string());
    let stale = text.replace("exit 0' fence hook stop", "exit 1' fence hook stop").replacen(
        "\"SessionEnd\": [",
        &format!("\"Old\": [\n      {}\n    ],\n    \"SessionEnd\": [\n      {moved},", older("fence")),
        1,
    );
    write(&sealed, ".claude/settings.json", &stale);
    write(&sealed, ".claude/skills/fence/SKILL.md", "---\nname: fence\n---\nold\n");
    write(&sealed, "CLAUDE.md", &read(&sealed, "CLAUDE.md").replace("Several", "Some"));
    assert_eq!(states(&["claude"]), (1, all("stale")));
    assert!(ok(&sealed, &["setup", "--list"]).contains("claude     stale    missing"));
    ok(&sealed, &["setup", "claude", "--strict"]);
    assert_eq!(states(&["claude"]), (0, all("current")));
    let now = tree(&sealed);
    let value = |tree: &BTreeMap<String, (u32, Vec<u8>)>| -> Value {
        serde_json::from_slice(&tree[".claude/settings.json"].1).expect("JSON")
    };
    assert_eq!(value(&now), value(&current));
    // For the user, it is another place.
    ok(&sealed, &["setup", "codex", "--user"]);
    assert_eq!(states(&["codex"]).0, 0);
    assert_eq!(states(&["codex", "--project"]).0, 1);
    let listed = ok(&sealed, &["--json", "setup", "--list"]);
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let hooks = listed[1]["hooks"].as_array().expect("hooks");
    let guard = hooks.iter().find(|hook| hook["event"] == "pre-tool-use").expect("the guard");
    assert_eq!((listed[1]["user"].as_str(), guard["client"].as_str()), (Some("current"), Some("codex")));
    assert_eq!(guard["file"], "HERE/home/.codex/hooks.json");
}

#[test]
fn files_that_are_not_understood_are_left_alone() {
    let sealed = world();
    write(&sealed, "elsewhere/target", "theirs");
    let here = sealed.path();
    let cases: [(&str, &dyn Fn()); 9] = [
        ("`HERE/.claude/settings.json`: it is not JSON: line 2: a value is missing", &|| {
            write(&sealed, ".claude/settings.json", "{\n\"a\": }");
        }),
        ("`HERE/.claude/settings.json`: `hooks` is a list, and an object belongs there", &|| {
            write(&sealed, ".claude/settings.json", "{\"hooks\": []}");
        }),
        ("`HERE/.claude/settings.json`: line 1: the key `hooks` is there twice", &|| {
            write(&sealed, ".claude/settings.json", "{\"hooks\": {}, \"hooks\": {}}");
        }),
        ("`HERE/.claude/settings.json` cannot be read: stream did not contain valid UTF-8", &|| {
            write(&sealed, ".claude/x", "");
            fs::write(here.join(".claude/settings.json"), b"{\"\xff\": 1}").expect("written");
        }),
        ("`HERE/.claude/skills/fence/SKILL.md`: the file is there, and fence did not write it", &|| {
            write(&sealed, ".claude/skills/fence/SKILL.md", "my own");
        }),
        (
            "`HERE/CLAUDE.md`: the markers `<!-- fence: begin … -->` and `<!-- fence: end -->` are not one pair (line 1)",
            &|| {
                write(&sealed, "CLAUDE.md", "<!-- fence: begin -->\n");
            },
        ),
        ("`HERE/CLAUDE.md` is a symbolic link, which is not followed", &|| {
            symlink("elsewhere/target", here.join("CLAUDE.md")).expect("linked");
        }),
        ("`HERE/.claude` is a symbolic link, which is not followed", &|| {
            symlink("elsewhere", here.join(".claude")).expect("linked");
        }),
        ("`HERE/CLAUDE.md` cannot be read: it is not a regular file", &|| {
            fs::create_dir(here.join("CLAUDE.md")).expect("made");
        }),
    ];
    let clean = tree(&sealed);
    for (problem, prepare) in cases {
        prepare();
        let before = tree(&sealed);
        let said = run(&sealed, &["setup", "claude"]);
        assert_eq!(
            (said.code, said.err.lines().next()),
            (1, Some(format!("error: {problem}").as_str())),
            "{said:?}"
        );
        assert_eq!(tree(&sealed), before, "{problem}: nothing was written");
        for name in [".claude", "CLAUDE.md"] {
            let path = here.join(name);
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
        assert_eq!(tree(&sealed), clean);
    }
    // A file where a directory belongs: nothing of the other files is written.
    write(&sealed, ".codex", "theirs");
    let before = tree(&sealed);
    let said = run(&sealed, &["setup", "codex"]);
    assert!(said.code == 1 && said.err.contains("`HERE/.codex/config.toml` cannot be "), "{said:?}");
    assert_eq!(tree(&sealed), before);
    fs::remove_file(sealed.path().join(".codex")).expect("removed");
    // A directory that cannot be written, unless this is root, who can write everywhere.
    let skills = sealed.path().join(".claude/skills");
    fs::create_dir_all(&skills).expect("made");
    fs::set_permissions(&skills, fs::Permissions::from_mode(0o555)).expect("set");
    if fs::create_dir(skills.join("try")).is_err() {
        let before = tree(&sealed);
        let said = run(&sealed, &["setup", "claude"]);
        let problem = "error: `HERE/.claude/skills/fence/SKILL.md` cannot be written: ";
        assert!(said.code == 1 && said.err.starts_with(problem), "{said:?}");
        assert_eq!(tree(&sealed), before, "nothing was written");
    }
    fs::set_permissions(&skills, fs::Permissions::from_mode(0o755)).expect("set");
}

/// Settings of the user may be links; they stay links.
#[test]
fn links_of_the_user_are_followed() {
    let sealed = world();
    write(&sealed, "home/dotfiles/settings.json", "{\"model\": \"opus\"}\n");
    fs::create_dir(sealed.path().join("home/.claude")).expect("made");
    symlink("../dotfiles/settings.json", sealed.path().join("home/.claude/settings.json")).expect("linked");
    let before = tree(&sealed);
    let shown = ok(&sealed, &["setup", "claude", "--user"]);
    assert!(shown.contains("changed  HERE/home/dotfiles/settings.json"), "{shown}");
    assert!(sealed.path().join("home/.claude/settings.json").is_symlink());
    ok(&sealed, &["setup", "claude", "--user", "--remove"]);
    assert_eq!(tree(&sealed), before);
    // The client's variable moves its directory.
    let moved = sealed.path().join("moved");
    let mut command = fence(&sealed, &["setup", "claude", "--user", "--mcp"]);
    let said = finished(command.env("CLAUDE_CONFIG_DIR", &moved).output().expect("fence"));
    assert_eq!(said.code, 0, "{said:?}");
    let mut files: Vec<_> =
        fs::read_dir(&moved).expect("listed").flatten().map(|entry| entry.file_name()).collect();
    files.sort();
    assert_eq!(files, [".claude.json", "CLAUDE.md", "settings.json"]);
}

#[test]
fn a_recipe_of_the_users_own() {
    let sealed = world();
    let recipe = "about = 'My client'\n[[part]]\nproject = '.my/client.json'\nformat = 'json'\n\
                  content = '{\"hooks\": [\"{quiet} hook stop --client my{flags}\"]}'\n[[advice]]\ntext = 'restart it'\n";
    write(&sealed, "home/.config/fence/recipes/my.toml", recipe);
    let shown = ok(&sealed, &["setup", "my"]);
    assert!(shown.ends_with("created  HERE/.my/client.json\nLeft for you:\n- restart it"), "{shown}");
    assert!(
        ok(&sealed, &["setup", "--list"]).contains("My client (HERE/home/.config/fence/recipes/my.toml)")
    );
    assert_eq!(run(&sealed, &["setup", "--check", "my"]).code, 0);
    ok(&sealed, &["setup", "my", "--remove"]);
    assert!(!sealed.path().join(".my").exists());
    // It replaces a built-in one of its name.
    write(&sealed, "home/.config/fence/recipes/claude.toml", recipe);
    assert!(ok(&sealed, &["setup", "claude"]).contains("created  HERE/.my/client.json"));
    write(&sealed, "home/.config/fence/recipes/my.toml", &recipe.replace("about", "abuot"));
    let wrong = run(&sealed, &["setup", "my"]);
    assert!(wrong.err.starts_with("error: recipe `my` is wrong: unknown field `abuot`"), "{wrong:?}");
    let none = run(&sealed, &["setup", "cursor"]);
    assert!(
        none.err.starts_with(
            "error: there is no recipe `cursor`\nhint: the recipes are claude, codex, agents-md, my;"
        ),
        "{none:?}"
    );
    assert_eq!(run(&sealed, &["setup"]).code, 2);
}

#[test]
fn setups_at_the_same_time_lose_nothing() {
    let sealed = world();
    let names: Vec<String> = (0..8).map(|at| format!("r{at}")).collect();
    for name in &names {
        let recipe = format!(
            "about = 'x'\n[[part]]\nproject = 'shared.json'\nformat = 'json'\ncontent = '{{\"list\": [\"{name}\"]}}'\n"
        );
        write(&sealed, &format!("home/.config/fence/recipes/{name}.toml"), &recipe);
    }
    write(&sealed, "shared.json", "{ \"theirs\": 1 }\n");
    let all_at_once = |more: &[&str]| {
        let children: Vec<_> = names
            .iter()
            .map(|name| {
                fence(&sealed, &[&["setup", name], more].concat())
                    .stdout(Stdio::null())
                    .spawn()
                    .expect("fence")
            })
            .collect();
        for mut child in children {
            assert!(child.wait().expect("its end").success());
        }
    };
    all_at_once(&[]);
    let mut list: Vec<String> =
        serde_json::from_str::<Value>(&read(&sealed, "shared.json")).expect("JSON")["list"]
            .as_array()
            .map(|list| list.iter().map(|name| name.as_str().unwrap_or_default().to_owned()).collect())
            .expect("a list");
    list.sort();
    assert_eq!(list, names);
    all_at_once(&["--remove"]);
    assert_eq!(read(&sealed, "shared.json"), "{ \"theirs\": 1 }\n");
}

/// The commands in the settings, run as a client runs them.
#[test]
fn the_installed_hooks_fail_closed() {
    let sealed = world();
    for (recipe, file) in [("claude", ".claude/settings.json"), ("codex", ".codex/hooks.json")] {
        ok(&sealed, &["setup", recipe]);
        let settings: Value = serde_json::from_str(&read(&sealed, file)).expect("JSON");
        let command = |event: &str| {
            let command = &settings["hooks"][event][0]["hooks"][0]["command"];
            // Where fence may be installed on the machine of the test, and that machine may be slow.
            let usual = ":/usr/local/bin:/opt/homebrew/bin";
            let command = command.as_str().unwrap_or_else(|| panic!("{recipe} {event}")).replace(usual, "");
            command.replace("timeout -k 2 20", "timeout -k 2 600")
        };
        assert!(command("PreToolUse").contains(&format!(" fence hook pre-tool-use --client {recipe}")));
        let fire = |event: &str, path: &str, tool: &str| {
            let mut hook = sealed.command("sh");
            hook.args(["-c", &command(event)]).env("PATH", path).stdin(Stdio::piped());
            let mut hook = hook.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("sh");
            let input = serde_json::json!({"tool_name": "Bash", "tool_input": {"command": tool}}).to_string();
            let _ = hook.stdin.take().expect("its input").write_all(input.as_bytes());
            finished(hook.wait_with_output().expect("its end"))
        };
        let without = "/usr/bin:/bin";
        let pushed = fire("PreToolUse", without, "git push");
        assert!(pushed.code == 2 && pushed.err.starts_with("fence: blocked."), "{pushed:?}");
        assert_eq!(fire("PreToolUse", without, "ls -l").code, 0);
        for event in ["SessionStart", "UserPromptSubmit", "PostToolUse", "Stop", "SessionEnd"] {
            let said = fire(event, without, "git push");
            assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (0, "", ""), "{event}");
        }
        sealed.script("bin-fence", "cat >/dev/null; echo \"$*\"; exit 0");
        fs::create_dir_all(sealed.path().join("bin")).expect("made");
        fs::rename(sealed.path().join("bin-fence"), sealed.path().join("bin/fence")).expect("renamed");
        let with = format!("{}:/usr/bin:/bin", sealed.path().join("bin").display());
        let answer = fire("PreToolUse", &with, "git push");
        assert!(answer.code == 0 && answer.out.starts_with("hook pre-tool-use --client"), "{answer:?}");
    }
}

#[test]
fn it_shows_what_it_writes() {
    let sealed = world();
    write(
        &sealed,
        ".codex/config.toml",
        "model = \"o3\"\n\n[sandbox_workspace_write]\nnetwork_access = true\n",
    );
    let shown = ok(&sealed, &["setup", "codex", "--board", "auth"]);
    // The hooks are shown in the recipe's test.
    let (config, rest) = shown.split_once("--- /dev/null\n+++ HERE/.codex/hooks.json").expect("the hooks");
    let page = rest.split_once("--- /dev/null").expect("the page").1;
    insta::assert_snapshot!("codex", format!("{config}[…]{page}"));
    let json = ok(&sealed, &["--json", "setup", "codex", "--remove", "--dry-run"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (json["written"].as_bool(), json["files"][0]["change"].as_str()),
        (Some(false), Some("changed"))
    );
    assert_eq!(json["files"][1]["diff"][1], "+++ /dev/null");
    assert_eq!(run(&sealed, &["setup", "--check", "codex"]).code, 0, "the board is known");
    let empty = Sealed::sqlite();
    let advice = "- there is no fleet here yet: `fence init` creates it";
    assert!(ok(&empty, &["setup", "agents-md"]).ends_with(advice));
}

/// The hooks of an installation as `doctor` fires them.
#[test]
fn doctor_fires_the_hooks() {
    let sealed = world();
    let findings = || {
        let said = run(&sealed, &["doctor", "--json"]);
        let all: Value = serde_json::from_str(&said.out).expect("JSON");
        let of_clients =
            all.as_array().expect("a list").iter().filter(|finding| finding["name"] == "clients");
        (
            said.code,
            of_clients
                .map(|finding| {
                    format!(
                        "{} {}",
                        finding["level"].as_str().expect("a level"),
                        finding["message"].as_str().expect("a message")
                    )
                })
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(findings(), (0, vec![]));
    ok(&sealed, &["setup", "claude"]);
    assert_eq!(
        findings(),
        (0, vec!["ok the hook of claude in HERE/.claude/settings.json blocks a push if the fleet cannot be reached".into()])
    );
    // Somebody made the hook harmless.
    let settings = read(&sealed, ".claude/settings.json");
    write(
        &sealed,
        ".claude/settings.json",
        &settings.replace("exit $c; fi", "exit 0; fi").replace(">&2; exit 2", ">&2; exit 0"),
    );
    let (code, found) = findings();
    assert!(
        code == 1 && found.iter().any(|finding| finding.starts_with("problem the hook of claude")),
        "{found:?}"
    );
    assert!(
        found.iter().any(|finding| finding.starts_with("warning the files of recipe claude")),
        "{found:?}"
    );
    ok(&sealed, &["setup", "claude"]);
    assert_eq!(findings().1.len(), 1);
    ok(&sealed, &["setup", "claude", "--remove"]);

    ok(&sealed, &["setup", "codex"]);
    let (code, found) = findings();
    assert!(
        code == 0
            && found[1].starts_with(
                "warning Codex skips hooks of HERE/.codex/hooks.json that you have not trusted, or turned off: "
            ),
        "{found:?}"
    );
    assert!(found[1].contains("pre_tool_use") && found[1].contains("session_end"), "{found:?}");
}

/// The plugin in this repository is what `fence setup claude --mcp` writes.
#[test]
fn the_plugin_is_up_to_date() {
    let sealed = world();
    ok(&sealed, &["setup", "claude", "--mcp"]);
    let plugin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.claude-plugin/fence");
    let json = |path: &Path| -> Value {
        serde_json::from_str(&fs::read_to_string(path).expect("a file")).expect("JSON")
    };
    assert_eq!(
        json(&plugin.join("hooks/hooks.json"))["hooks"],
        json(&sealed.path().join(".claude/settings.json"))["hooks"]
    );
    assert_eq!(json(&plugin.join(".mcp.json")), json(&sealed.path().join(".mcp.json")));
    ok(&sealed, &["prime", "--skill"]);
    let skill = fs::read_to_string(plugin.join("skills/fence/SKILL.md")).expect("a skill");
    assert_eq!(
        skill,
        read(&sealed, ".claude/skills/fence/SKILL.md"),
        "fence prime --skill=.claude-plugin/fence/skills/fence"
    );
    assert_eq!(json(&plugin.join(".claude-plugin/plugin.json"))["version"], env!("CARGO_PKG_VERSION"));
}
