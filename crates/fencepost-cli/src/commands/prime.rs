use crate::{context::Context, location, output::text};
use clap::Args;
use fencepost::{Error, Result, board};
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Print the page that an agent reads first: how to find, claim, do and complete work here
///
/// Paste the page into the agent's first prompt, or let the agent run this command. With --skill the page is written as a skill,
/// which agents that support skills read by themselves.
///
/// Examples:
///   fence prime
///   fence prime --board auth
///   fence prime --skill
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Prime {
    /// The board for the agent  [default: all boards]
    #[arg(long)]
    board: Option<String>,
    /// Write DIR/SKILL.md instead  [default DIR: .claude/skills/fence]
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = ".claude/skills/fence")]
    skill: Option<PathBuf>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Page {
    page: String,
    /// The file that it was written to.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
}

impl Prime {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        if let Some(board) = &self.board {
            // A typing error would send the agent to a board without tasks.
            context.call(board::Show { board: board.clone(), limit: Some(1) }).await?;
        }
        let page = page(self.board.as_deref(), &context.command_line());
        let Some(directory) = self.skill else {
            return context.print(&Page { page: page.clone(), file: None }, |_| page);
        };
        let page = format!("{FRONT}{page}");
        let file = directory.join("SKILL.md");
        write(&file, &page)?;
        context.print(&Page { page, file: Some(file) }, |Page { file, .. }| {
            format!("written to {}", file.as_deref().unwrap_or(Path::new("")).display())
        })
    }
}

const FRONT: &str = "---
name: fence
description: Shares out the tasks of this repository among several agents with `fence`. Use it before starting work \
that others may start too, to find, claim, do and complete tasks, and before side effects that only a task's \
holder may cause.
---

";

/// The page as a skill, for `fence setup`.
pub(super) fn skill(board: Option<&str>, command_line: &clap::Command) -> String {
    format!("{FRONT}{}", page(board, command_line))
}

fn write(file: &Path, page: &str) -> Result<()> {
    let failed = |e| Error::unavailable(format!("cannot write `{}`: {e}", file.display()));
    let directory = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory).map_err(failed)?;
    // A cloned repository may contain a link to another file.
    location::refuse_link(file).map_err(|e| e.hint("remove it, or name another directory"))?;
    std::fs::write(file, page).map_err(failed)
}

/// The commands that the page lists.
const USEFUL: [&str; 12] =
    ["ready", "claim", "show", "progress", "done", "fail", "release", "guard", "lock", "why", "note", "add"];

/// The page. A test checks every command in it against the definitions, and the list of commands is made from them.
fn page(board: Option<&str>, command_line: &clap::Command) -> String {
    let on = board.map_or(String::new(), |board| format!(" --board {}", text::line(board)));
    let commands: Vec<String> =
        USEFUL.iter().filter_map(|name| line(command_line.find_subcommand(name)?)).collect();
    format!(
        "# Working with fence

Several agents work here at the same time. `fence` gives each task to one of them: a claim is yours until you
complete it, give it back, or its lease expires. Never work on a task that you have not claimed, and never
claim more than one at a time.

## The loop

1. `fence claim --keep --wait 1m{on}` claims the best task that is ready and prints its token, such as
   `task/auth-3@42`, with all you need: the body, \"done when\", notes, and the outputs of the tasks before it.
   Exit 3 means that nothing is ready: see below.
2. Do the work. Report how it goes with `fence progress \"tests pass, docs are left\" task/auth-3@42`; that also renews
   your claim. To ask or tell the planner something: `fence note auth-3 \"the schema has two owners, which one?\"`.
   Run commands with effects outside (a push, a deploy, a message) only while the claim lives. A push is also one at a time,
   after a rebase: `fence guard task/auth-3@42 -- fence lock git/main --wait -- sh -c \"git pull --rebase && git push\"`.
3. `fence done task/auth-3@42 --output \"the result, in a line or two\"` completes it. Tasks that depend on it get the
   output. If it cannot be done: `fence fail task/auth-3@42 --reason \"why\"`, with `--retry` if another attempt may
   succeed; if you must stop: `fence release task/auth-3@42 --note \"how far you came\"`.
4. Go back to 1, until it says that everything is finished.

Always name the token that you were given: others may act for the same session. If `fence whoami` names another run
with each of your commands, name one of your own in all of them: `fence claim --keep --run NAME`, or set FENCE_RUN. A
subagent does so, too. Work in a git work tree of your own.

Found more work? `fence add \"title\" --body \"what and why\" --after auth-3` plans it for another agent.
`fence` alone shows who you are, what you hold and what is ready. To empty a queue: `fence mail --help`. To
act as a named agent: `fence poll --help`.

## When you are refused

| exit | meaning | what to do |
|---|---|---|
| 1 | it failed; the message says why | fix what it names |
| 2 | wrong command line | `fence --help`; every command has `--help` |
| 3 | nothing to take | \"is finished\": stop, all is done. \"nobody is at work\": stop, and report what it says. \
Otherwise others are at work: claim again |
| 4 | not yours to take | take another: `fence claim --wait 1m{on}`; `fence why auth-3` explains it |
| 5 | your claim is over | stop at once, push nothing: someone else may have the task. `fence ack`, alone on a line, says that you \
stopped; then claim again |
| 6 | held back | wait as long as it says, then try again |

A refusal is an answer: do not work around it. Never edit the database, and never use the token of another.

## Commands

{}

`--json` prints any reply as JSON. TEXT may be `@file` or `-` for standard input.
",
        commands.join("\n")
    )
}

/// A shorter page, for the start of a client's session.
pub fn session_page(board: Option<&str>, mcp: bool) -> String {
    let on = board.map_or(String::new(), |board| format!(" --board {}", text::line(board)));
    let of = board.map_or(String::new(), |board| format!(" of board `{}`", text::line(board)));
    let head = "# fence

Several agents work in this repository at the same time. `fence` gives each task to one of them: a claim is yours until you \
complete it, give it back, or its lease expires. Never work on a task that you have not claimed, and hold one at a time.
";
    let ack = if mcp { "`finish` with `how: acknowledge`" } else { "`fence ack`, alone on a line," };
    let tail = format!(
        "
A refusal is an answer: do not work around it. \"Your claim is over\" means: stop at once, push nothing, and claim something else. \
If your tools are blocked because you lost a claim, {ack} says that you stopped.
"
    );
    match mcp {
        true => format!(
            "{head}
- The tool `claim` takes the best ready task{of} and returns its token with everything you need.
- While you work, `report` says how it goes and renews your claim. `plan` adds tasks that you find, and notes for the planner.
- Before a deploy or another effect outside, `guard` says whether the claim is still yours. Push in a shell, one at a time: \
`fence lock git/main --wait -- sh -c \"git pull --rebase && git push\"`.
- `finish` completes the task with its result, fails it with the reason, or gives it back. Then claim the next one.
{tail}The resource fence://prime has the whole page. In a shell, `fence` acts for the same session.
"
        ),
        false => format!(
            "{head}
- `fence claim --keep --wait 1m{on}` claims the best ready task and prints its token with everything you need.
- `fence progress TEXT TOKEN` says how it goes and renews your claim. `fence note TASK TEXT` tells the planner something.
- `fence guard TOKEN -- fence lock git/main --wait -- sh -c \"git pull --rebase && git push\"` pushes while the claim lives.
- `fence done TOKEN --output TEXT` completes it, `fence fail TOKEN --reason TEXT` fails it, `fence release TOKEN` gives it back.
{tail}`fence prime` prints the whole page, `fence --help` all commands.
"
        ),
    }
}

/// `fence done [TOKEN] [--output TEXT] [--next]`: Complete a task that you hold
fn line(command: &clap::Command) -> Option<String> {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_global_set());
    // Required arguments come first, and a command to run last.
    let mut args: Vec<_> = shown.collect();
    args.sort_by_key(|arg| (arg.is_last_set(), !arg.is_required_set()));
    let mut usage = format!("fence {}", command.get_name());
    for arg in args {
        let value = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
        let value = value.unwrap_or_default();
        let word = match arg.get_long() {
            Some(long) if arg.is_require_equals_set() => format!("--{long}[={value}]"),
            Some(long) if arg.get_action().takes_values() => format!("--{long} {value}"),
            Some(long) => format!("--{long}"),
            None if arg.is_last_set() => format!("-- {value}"),
            None => value,
        };
        usage += &if arg.is_required_set() { format!(" {word}") } else { format!(" [{word}]") };
    }
    Some(format!("- `{usage}`: {}", command.get_about()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token is at least three characters of English on average, and rather four.
    #[test]
    fn the_page_is_under_1500_tokens() {
        let page = page(Some("a-board-with-a-long-name"), &crate::command_line::definition());
        assert!(page.len() < 1500 * 3, "{} bytes", page.len());
    }

    #[test]
    fn every_command_on_the_page_is_one() {
        let page = page(Some("auth"), &crate::command_line::definition());
        let commands = commands(&page);
        assert!(commands.len() > 20, "only {} commands were found on the page", commands.len());
        assert_eq!(commands.iter().filter_map(|command| problem(command)).collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn every_command_on_the_page_of_a_session_is_one() {
        for page in [session_page(Some("auth"), false), session_page(None, false)] {
            let commands = commands(&page);
            assert!(commands.len() > 7, "only {} commands were found on the page", commands.len());
            assert_eq!(commands.iter().filter_map(|command| problem(command)).collect::<Vec<_>>(), [""; 0]);
        }
    }

    /// The state of the session comes after it, in at most 2 KB.
    #[test]
    fn the_page_of_a_session_leaves_room_for_its_state() {
        for mcp in [false, true] {
            let page = session_page(Some("a-board-with-a-long-name"), mcp);
            assert!(page.len() < 1500 * 3 - 2048, "{} bytes", page.len());
        }
    }

    #[test]
    fn every_command_in_coming_from_is_one() {
        let commands = commands_of_document(include_str!("../../../../docs/coming-from.md"));
        assert!(commands.len() > 60, "only {} commands were found on the page", commands.len());
        assert_eq!(commands.iter().filter_map(|command| problem(command)).collect::<Vec<_>>(), [""; 0]);
    }

    /// The commands that stand in the text of a document, or in a script that tests only parse. The others are run.
    #[test]
    fn every_command_in_the_documents_is_one() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut pages: Vec<PathBuf> =
            ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|page| root.join(page)).into();
        for folder in ["docs", "docs/decisions"] {
            let entries = std::fs::read_dir(root.join(folder)).expect("a folder");
            let entries = entries.map(|entry| entry.expect("an entry").path());
            pages.extend(entries.filter(|path| path.extension().is_some_and(|ext| ext == "md")));
        }
        let read = |page: &PathBuf| std::fs::read_to_string(page).expect("a page");
        let commands: Vec<_> = pages.iter().flat_map(|page| commands_of_document(&read(page))).collect();
        assert!(commands.len() > 150, "only {} commands were found in the documents", commands.len());
        let wrong =
            commands.iter().filter(|command| !is_name(command)).filter_map(|command| problem(command));
        assert_eq!(wrong.collect::<Vec<_>>(), [""; 0]);
    }

    /// The texts that are quoted as commands.
    fn commands(page: &str) -> Vec<String> {
        let is_command = |quoted: &&str| *quoted == "fence" || quoted.starts_with("fence ");
        page.split('`').skip(1).step_by(2).filter(is_command).map(str::to_owned).collect()
    }

    /// Scripts are commands line by line, and in `$(…)`.
    fn commands_of_document(page: &str) -> Vec<String> {
        let parts = page.split("\n```").enumerate();
        let (blocks, text): (Vec<_>, Vec<_>) = parts.partition(|(at, _)| at % 2 == 1);
        let is_script = |block: &str| block.starts_with("sh\n") || block.starts_with("sh parsed\n");
        let scripts = blocks.into_iter().filter(|(_, block)| is_script(block));
        let lines = scripts.flat_map(|(_, block)| block.lines().skip(1));
        let lines = lines
            .map(|line| line.split_once("$(").map_or(line, |(_, rest)| rest.trim_end_matches(['"', ')'])));
        let scripts: String = lines.map(|line| format!("`{line}` ")).collect();
        let text: String = text.into_iter().map(|(_, part)| part).collect();
        [commands(&scripts), commands(&text)].concat()
    }

    /// Is it only the name of a command, without arguments?
    fn is_name(quoted: &str) -> bool {
        let words = shell_words(quoted);
        let find = |command: clap::Command, word: &String| command.find_subcommand(word).cloned();
        words.iter().skip(1).try_fold(crate::command_line::definition(), find).is_some()
    }

    fn problem(quoted: &str) -> Option<String> {
        // A shell would end the command there.
        let ends = |word: &String| ["&&", "&", "|", ">", "<", "#"].contains(&word.as_str());
        let words = shell_words(quoted).into_iter().take_while(|word| !ends(word) && word != "--help");
        let words: Vec<String> = words.map(|word| word.replace("[=DURATION]", "")).collect();
        // Brackets mark optional parts, which are dropped. Of alternatives in brackets, the first is taken.
        let without = |kept: usize| -> Vec<String> {
            let line = words.join("\u{1f}");
            let parts = line.split(['[', ']']).enumerate();
            let line: String =
                parts.filter(|(at, _)| at % 2 == 0 || *at < kept * 2).map(|(_, part)| part).collect();
            line.split('\u{1f}').filter(|word| !word.is_empty()).map(str::to_owned).collect()
        };
        let parse = |words: Vec<String>| crate::command_line::definition().try_get_matches_from(words);
        let error = parse(without(0)).or_else(|_| parse(without(1))).err()?;
        Some(format!("`{quoted}` is not a command: {error}"))
    }

    /// Words as a shell splits them, with either kind of quotes.
    fn shell_words(text: &str) -> Vec<String> {
        let (mut words, mut open) = (vec![String::new()], None);
        for c in text.chars() {
            let word = words.last_mut().expect("a word");
            match c {
                '"' | '\'' if open.is_none() => open = Some(c),
                c if open == Some(c) => open = None,
                ' ' if open.is_none() => words.push(String::new()),
                c => word.push(c),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }
}
