//! Pages run as written, each in a fresh fleet: a reader who copies their commands sees what they show.

use super::page::{Block, Kind, Page, ROOT};
use crate::{on_both, sealed::Sealed};

/// Declares the pages whose commands are run one after the other in one fleet.
macro_rules! pages {
    ($($test:ident: $path:literal),* $(,)?) => {
        on_both! {
            without a server:

            $(fn $test(sealed: Sealed) { run(&Page::read($path), &sealed) })*
        }

        const PAGES: &[&str] = &[$($path),*];
    };
}

pages! {
    readme: "README.md",
    agents: "docs/agents.md",
    claude_and_codex: "docs/claude-and-codex.md",
    coming_from: "docs/coming-from.md",
    effects: "docs/effects.md",
    git_fence: "docs/git-fence.md",
    importing: "docs/importing.md",
    leases_and_guards: "docs/leases-and-guards.md",
    loops: "docs/loops.md",
    mailboxes: "docs/mailboxes.md",
    operations: "docs/operations.md",
    spend: "docs/spend.md",
    storms: "docs/storms.md",
    tasks: "docs/tasks.md",
    workers: "docs/workers.md",
}

fn run(page: &Page, sealed: &Sealed) {
    prepare(&page.path, sealed);
    let blocks = page.blocks();
    if !blocks.iter().any(|block| is_run(block) && block.text.contains("fence init")) {
        sealed.ok(&["init"]);
    }
    for block in blocks {
        match block.kind {
            Kind::ConsoleOnSqlite if !sealed.is_in_its_work_tree() => {}
            Kind::Console | Kind::ConsoleOnSqlite => converse(&block, sealed),
            Kind::Script => {
                let said = sealed.sh(&format!("exec </dev/null; set -e; {PATH}\n{}", block.text));
                assert_eq!(said.code, 0, "{}: {said:?}", block.at);
            }
            _ => {}
        }
    }
}

fn is_run(block: &Block) -> bool {
    matches!(block.kind, Kind::Console | Kind::ConsoleOnSqlite | Kind::Script)
}

/// Finds what [`prepare`] put there.
const PATH: &str = r#"PATH="$PWD/bin:$PATH""#;

/// What a page says is there already.
fn prepare(path: &str, sealed: &Sealed) {
    match path {
        "README.md" => {
            std::fs::create_dir(sealed.path().join("bin")).expect("a directory");
            // It stands in for the real client.
            sealed.script(
                "bin/claude",
                r#"[[ $1 == -p && $(cat) == *"claim: $FENCE_CLAIM"* ]] && fence done --output "did it""#,
            );
        }
        "docs/coming-from.md" => {
            std::fs::create_dir(sealed.path().join(".pm")).expect("a directory");
            sealed.write("agent-swarm-db.sqlite", include_bytes!("../../data/agent-swarm.sqlite"));
            sealed.write(".pm/tasks.db", include_bytes!("../../data/pm-tasks.db"));
            sealed.write("left.jsonl", "{\"tool_input\": \"ls\"}\n{\"tool_input\": \"make\"}\n");
            sealed.first_commit();
            sealed.write("prd.json", include_bytes!("../../../../../examples/loop/prd.json"));
            sealed.write(
                "loop.toml",
                "steps = ['implement']\nstep.implement = 'date > \"$FENCE_STORY.txt\"'\n",
            );
            sealed.script("feed-the-model", "cat");
        }
        "docs/git-fence.md" | "docs/loops.md" | "docs/workers.md" => sealed.first_commit(),
        _ => {}
    }
}

fn converse(block: &Block, sealed: &Sealed) {
    let steps = steps(&block.text);
    assert!(!steps.is_empty(), "{}: a console without a command", block.at);
    for (command, expected) in steps {
        if command == "fence init" && sealed.server().is_some() {
            // It was made where it is served.
            continue;
        }
        if ["fence events", "fence log"].iter().any(|reads| command.starts_with(reads)) {
            sealed.readable();
        }
        let said = sealed.sh(&format!("{PATH}; {{ {command}\n}} 2>&1"));
        assert!(
            matches(&expected, &said.out),
            "{}: $ {command}\n--- the page says\n{expected}\n--- it said (exit {})\n{}",
            block.at,
            said.code,
            said.out
        );
    }
}

/// `$ command` lines, `> ` for their continuation, each with the output below it.
fn steps(console: &str) -> Vec<(String, String)> {
    let mut steps: Vec<(String, String)> = Vec::new();
    for line in console.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push((command.into(), String::new()));
        } else {
            let (command, output) = steps.last_mut().expect("a console begins with a command");
            match line.strip_prefix("> ").or((line == ">").then_some("")) {
                Some(more) if output.is_empty() => command.extend(["\n", more]),
                _ => output.extend([line, "\n"]),
            }
        }
    }
    steps
}

/// `…` stands for anything on its line; a line that is only `…` for any lines.
pub fn matches(expected: &str, said: &str) -> bool {
    let expected: Vec<&str> = expected.trim_end().lines().map(str::trim_end).collect();
    let said: Vec<&str> = said.trim_end().lines().map(str::trim_end).collect();
    lines_match(&expected, &said)
}

fn lines_match(expected: &[&str], said: &[&str]) -> bool {
    match (expected, said) {
        ([], []) => true,
        (["…", rest @ ..], _) => (0..=said.len()).any(|skip| lines_match(rest, &said[skip..])),
        ([first, rest @ ..], [line, more @ ..]) => line_matches(first, line) && lines_match(rest, more),
        _ => false,
    }
}

fn line_matches(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut last = "";
    let mut open = false;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        (last, open) = (part, true);
    }
    rest.is_empty() || (open && last.is_empty())
}

#[test]
fn a_wrong_page_would_be_noticed() {
    assert!(matches("held by run a until …\nb", "held by run a until 12:00\nb"));
    assert!(!matches("held by run a until …\nb", "held by run b until 12:00\nb"));
    assert!(!matches("a", "a\nb"));
    assert!(matches("a\n…", "a\nb\nc"));
    assert!(!matches("", "something"));
    assert_eq!(
        steps("$ a\nb\n$ c <<X\n> d\n> X\n"),
        [("a".into(), "b\n".into()), ("c <<X\nd\nX".into(), String::new())]
    );
}

#[test]
fn every_page_with_commands_is_run() {
    for page in Page::all() {
        let runs = page.blocks().iter().any(is_run);
        assert_eq!(PAGES.contains(&page.path.as_str()), runs, "{}: is it in the list of pages?", page.path);
    }
}

/// The blocks that cannot be run: their syntax is right, the settings exist, and so do the targets of `make`.
#[test]
fn every_block_that_is_not_run_is_parsed() {
    let sealed = Sealed::sqlite();
    let mut seen = Vec::new();
    for block in Page::all().iter().flat_map(Page::blocks) {
        let said = match block.kind {
            Kind::ParsedScript => {
                sealed.write("block", &block.text);
                let makes = block.text.lines().filter(|line| line.starts_with("make"));
                let makes: String =
                    makes.map(|line| format!("make -C '{ROOT}' -n {}\n", &line[4..])).collect();
                sealed.sh(&format!("set -e; bash -n block\n{makes}"))
            }
            Kind::ParsedToml => {
                let parsed = block.text.parse::<toml::Table>();
                assert!(parsed.is_ok(), "{}: {parsed:?}", block.at);
                continue;
            }
            Kind::ParsedUnit => {
                let is_unit = |line: &str| {
                    line.is_empty()
                        || (line.starts_with('[') && line.ends_with(']'))
                        || line.split_once('=').is_some_and(|(key, value)| {
                            key.chars().all(char::is_alphabetic) && !value.is_empty()
                        })
                };
                assert!(block.text.lines().all(is_unit) && block.text.contains("ExecStart="), "{}", block.at);
                continue;
            }
            Kind::Settings => {
                sealed.write("settings.toml", &block.text);
                sealed.sh("FENCE_CONFIG=settings.toml fence config show")
            }
            Kind::Text => {
                let is_command = |line: &str| line.starts_with("$ ") || line.starts_with("fence ");
                assert!(!block.text.lines().any(is_command), "{}: a command in a text", block.at);
                continue;
            }
            _ => continue,
        };
        assert_eq!(said.code, 0, "{}: {said:?}", block.at);
        seen.push(block.kind);
    }
    assert!(seen.contains(&Kind::ParsedScript) && seen.contains(&Kind::Settings), "{seen:?}");
    let wrong = sealed.sh("echo 'no-such = 1' > wrong.toml; FENCE_CONFIG=wrong.toml fence config show");
    assert_ne!(wrong.code, 0, "a setting that does not exist would not be noticed: {wrong:?}");
}
