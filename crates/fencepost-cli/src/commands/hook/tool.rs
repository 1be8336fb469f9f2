//! Which kind of tool a client is about to call. The names are those of Claude Code 2.1 and Codex 0.169.

use super::Input;
use crate::guarded::{self, shell::Line};
use serde_json::Value;

/// Tools that run a command line.
const SHELLS: [&str; 8] =
    ["Bash", "PowerShell", "Monitor", "shell", "local_shell", "exec_command", "unified_exec", "write_stdin"];
/// Tools that write files.
const WRITERS: [&str; 7] =
    ["Edit", "MultiEdit", "Write", "NotebookEdit", "EnterWorktree", "ExitWorktree", "apply_patch"];

/// Commands of fence that run other commands, write files, serve others, or change the guard. A session that lost its claim needs none
/// of them.
const MORE_THAN_PLAIN: [&str; 18] = [
    "backup",
    "completions",
    "demo",
    "export",
    "git",
    "hook",
    "init",
    "keep",
    "lift",
    "lock",
    "man",
    "mcp",
    "once",
    "serve",
    "setup",
    "trust",
    "watchdog",
    "work",
];
/// Words that make more of a command.
const MORE_WITH: [(&str, &str); 4] =
    [("call", "run/lift"), ("loop", "run"), ("mail", "work"), ("prime", "--skill")];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tool {
    /// One of `fence mcp`.
    Own,
    /// A command line.
    Shell(String),
    /// All texts of an input whose form is not known, which may be a command line.
    Unknown(String),
    /// It writes files, or does what another MCP server offers.
    Writes,
    Reads,
}

impl Tool {
    /// `reads`: names of tools that only read. A `*` at the end stands for any text.
    pub fn of(input: &Input, reads: &[String]) -> Self {
        let name = input.tool_name.as_deref().unwrap_or_default();
        let is_listed = |listed: &String| match listed.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == listed,
        };
        if input.is_own_tool() {
            return Tool::Own;
        }
        if WRITERS.contains(&name) {
            return Tool::Writes;
        }
        if name.starts_with("mcp__") {
            return if reads.iter().any(is_listed) { Tool::Reads } else { Tool::Writes };
        }
        let given = input.tool_input.as_ref().unwrap_or(&Value::Null);
        // Its grammar is another one, and nothing can be proven in it.
        if name == "PowerShell" {
            return Tool::Unknown(texts(given));
        }
        // A list beside a line may be its arguments.
        let is_list = |value: &Value| value.is_array() || value.is_object();
        let is_flat = given.as_object().is_none_or(|fields| !fields.values().any(is_list));
        let is_known = !name.is_empty() && !SHELLS.contains(&name);
        match (given.get("command"), given.get("cmd")) {
            (Some(Value::String(line)), None) | (None, Some(Value::String(line))) if is_flat => {
                Tool::Shell(line.clone())
            }
            (None, None) if given.is_null() || (given.is_object() && is_known) => Tool::Reads,
            _ => Tool::Unknown(texts(given)),
        }
    }
}

/// The words of a line that is one plain `fence` command, and runs no other command. `fence guard` refuses by itself after a loss, but
/// not for the token of another session.
pub fn plain_fence(line: &str) -> Option<Vec<String>> {
    let parsed = Line::parse(line)?;
    let [command] = parsed.commands.as_slice() else { return None };
    let words: Vec<String> = command.own().iter().map(|word| word.text.clone()).collect();
    let is_plain = command.is_plain() && parsed.written.is_empty() && guarded::is_fence(command);
    let has = |start: &str| words.iter().any(|word| word.starts_with(start));
    let is_more = |verb| {
        MORE_THAN_PLAIN.contains(&verb) || MORE_WITH.iter().any(|(name, with)| *name == verb && has(with))
    };
    // After `--` comes another command.
    (is_plain && !words.iter().any(|word| word == "--") && !verbs(&words).any(is_more)).then_some(words)
}

/// The words that may be the command's name: the first that is no option, and that after a word which may be an option's value.
fn verbs(words: &[String]) -> impl Iterator<Item = &str> {
    let mut is_over = false;
    words.windows(2).filter(|pair| !pair[1].starts_with('-')).map_while(move |pair| {
        let was_over = std::mem::replace(&mut is_over, !pair[0].starts_with('-'));
        (!was_over).then_some(pair[1].as_str())
    })
}

/// Is it `fence ack`, and not only a question about it?
pub fn is_ack(words: &[String]) -> bool {
    let (own, options): (Vec<&str>, Vec<&str>) =
        words.iter().map(String::as_str).partition(|word| !word.starts_with('-'));
    own == ["fence", "ack"] && options.iter().all(|option| *option == "--json")
}

/// All texts in a value, the names of its fields among them.
fn texts(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(texts).collect::<Vec<_>>().join(" "),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| format!("{name} {}", texts(value)))
            .collect::<Vec<_>>()
            .join("\n"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn plain_commands_of_fence() {
        for line in [
            "fence ack",
            " fence ack # it is lost",
            "fence ack 2>&1",
            "fence ack &",
            "fence claim auth-3 --keep",
            "fence done --output 'git push; done'",
            "fence guard task/auth-3@42",
            "time fence --json ready 2>/dev/null",
            "fence done auth-3 --output \"$result\"",
            "fence list --board git",
            "fence --json note auth-1 setup",
            "fence note auth-1 lock",
            "fence list --board work",
            "fence loop status",
            "fence prime",
        ] {
            assert!(plain_fence(line).is_some(), "{line}");
        }
        for line in [
            "",
            "ls",
            "fence ack; ls",
            "fence ack && rm x",
            "fence ack | sh",
            "fence ack > x",
            "X=1 fence ack",
            "fence $x",
            "fence \"$(rm x)\"",
            "fence `rm x`",
            "fence lock a -- rm x",
            "fence --json once k -- rm x",
            "fence work --agent a",
            "fence mail work x",
            "fence loop run x",
            "fence setup claude --remove",
            "fence git install --remove",
            "fence export README.md --force",
            "fence man docs",
            "fence --json setup claude",
            "fence prime --skill=DIR",
            "fence call run/lift @lift.json",
            "fence --agent note setup claude",
            "fence guard task/auth-3@42 -- rm x",
            "fence {lock,a,--,rm,x}",
            "fence {lock,'a',--,rm,x}",
            "fence note a $x",
            "fence note a --note \"$(rm x)\"",
            "fence mail $v box $w rm x",
            "fence status 2&</dev/null rm x",
            "fence ack 2>&-#; rm x",
            "fence note <<$X\n$(rm x)\n$X",
            "(fence ack)\nrm x",
            "if fence ack; then rm x; fi",
            "./fence ack",
            "fence ack <(rm x)",
            "fence note <<EOF\n$(rm x)\nEOF",
            "fence ack 2> \"$(rm x)\"",
        ] {
            assert!(plain_fence(line).is_none(), "{line}");
        }
    }

    #[test]
    fn only_an_acknowledgement_acknowledges() {
        for (line, expected) in [
            ("fence ack", true),
            ("fence --json ack", true),
            ("fence ack --json 2>&1", true),
            ("fence ack --help", false),
            ("fence ack -h", false),
            ("fence ack again", false),
            ("fence note ack", false),
            ("fence help ack", false),
        ] {
            assert_eq!(is_ack(&plain_fence(line).expect(line)), expected, "{line}");
        }
    }

    #[test]
    fn kinds_of_tools() {
        let reads = ["mcp__github__get_*".to_owned(), "mcp__db__query".to_owned()];
        let shell = |line: &str| Tool::Shell(line.into());
        let unknown = |text: &str| Tool::Unknown(text.into());
        for (name, input, expected) in [
            ("Bash", json!({ "command": "git push", "description": "x" }), shell("git push")),
            ("exec_command", json!({ "cmd": "git push" }), shell("git push")),
            ("", json!({ "command": "git push" }), shell("git push")),
            ("Bash", json!({ "command": ["bash", "-lc", "git push"] }), unknown("command bash -lc git push")),
            ("Bash", json!({ "command": { "a": "git push" } }), unknown("command a git push")),
            ("Bash", json!({ "command": "ls", "cmd": "git push" }), unknown("command ls\ncmd git push")),
            (
                "Bash",
                json!({ "command": "ls", "args": ["git", "push"] }),
                unknown("command ls\nargs git push"),
            ),
            ("", json!({ "script": "git push" }), unknown("script git push")),
            ("Bash", json!("git push"), unknown("git push")),
            ("Bash", json!({ "script": "git push" }), unknown("script git push")),
            ("x", json!(["git", "push"]), unknown("git push")),
            ("Edit", json!({ "file_path": "x", "new_string": "git push" }), Tool::Writes),
            ("apply_patch", json!({ "command": "*** Begin Patch" }), Tool::Writes),
            ("mcp__github__push_files", json!({ "command": "x" }), Tool::Writes),
            ("mcp__github__get_issue", json!({}), Tool::Reads),
            ("mcp__db__query", json!({}), Tool::Reads),
            ("mcp__db__query2", json!({}), Tool::Writes),
            ("mcp__fence__claim", json!({}), Tool::Own),
            ("Read", json!({ "file_path": "x" }), Tool::Reads),
            ("Bash", json!(null), Tool::Reads),
        ] {
            let event =
                Input { tool_name: Some(name.into()), tool_input: Some(input.clone()), ..Input::default() };
            assert_eq!(Tool::of(&event, &reads), expected, "{name} {input}");
        }
    }

    /// A tool that a client does not call its hook for is not guarded.
    #[test]
    fn the_recipes_name_all_tools() {
        for (recipe, missing) in [
            // Names of Codex.
            (
                include_str!("../setup/recipes/claude.toml"),
                "shell local_shell exec_command unified_exec write_stdin apply_patch",
            ),
            // Codex calls all its shells `Bash`, and no hook for `write_stdin`. The others are Claude Code's.
            (
                include_str!("../setup/recipes/codex.toml"),
                "PowerShell Monitor shell local_shell exec_command unified_exec write_stdin Edit MultiEdit Write NotebookEdit EnterWorktree ExitWorktree",
            ),
        ] {
            let (_, hooks) = recipe.split_once("\"PreToolUse\"").expect("hooks");
            let (hooks, _) = hooks.split_once("\n    ]").expect("their end");
            let matchers = hooks.split("\"matcher\": \"").skip(1).filter_map(|rest| rest.split_once('"'));
            let named: Vec<&str> = matchers.flat_map(|(matcher, _)| matcher.split('|')).collect();
            let tools = SHELLS.iter().chain(&WRITERS).copied().chain(["mcp__.*"]);
            let unnamed: Vec<&str> = tools.filter(|tool| !named.contains(tool)).collect();
            assert_eq!(unnamed.join(" "), missing);
        }
    }
}
