use crate::{context::Context, location, output::text};
use clap::Args;
use fencepost::{Error, Result};
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
that others may start too, to find, claim, do and complete tasks, and before side effects that must happen once.
---

";

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
   your claim. Run commands with effects outside (a push, a deploy, a message) only while the claim lives:
   `fence guard task/auth-3@42 -- git push`.
3. `fence done task/auth-3@42 --output \"the result, in a line or two\"` completes it. Tasks that depend on it get the
   output. If it cannot be done: `fence fail task/auth-3@42 --reason \"why\"`, with `--retry` if another attempt may
   succeed; if you must stop: `fence release task/auth-3@42 --note \"how far you came\"`.
4. Go back to 1, until it says that everything is finished.

Always name the token that you were given: others may act for the same session. If `fence whoami` names another run
with each of your commands, set FENCE_RUN to a name of your own for all of them.
Work in a git work tree of your own, and push under a lock: `fence lock git/main --wait -- git push`.

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
| 5 | your claim is over | stop at once, push nothing: someone else may have the task. Then claim again |
| 6 | held back | wait as long as it says, then try again |

A refusal is an answer: do not work around it. Never edit the database, and never use the token of another.

## Commands

{}

`--json` prints any reply as JSON. TEXT may be `@file` or `-` for standard input.
",
        commands.join("\n")
    )
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
        let seen = parse_commands(&page(Some("auth"), &crate::command_line::definition()));
        assert!(seen > 20, "only {seen} commands were found on the page");
    }

    #[test]
    fn every_command_in_coming_from_is_one() {
        let page = include_str!("../../../../docs/coming-from.md");
        // Scripts are commands line by line.
        let scripts = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
        let scripts: String = scripts.flat_map(str::lines).map(|line| format!("`{line}` ")).collect();
        let text: String = page.split("```").step_by(2).collect();
        let seen = parse_commands(&scripts) + parse_commands(&text);
        assert!(seen > 60, "only {seen} commands were found on the page");
    }

    /// Fails on a quoted command that does not exist; returns the number of commands.
    fn parse_commands(page: &str) -> usize {
        let mut seen = 0;
        let is_command = |quoted: &&str| *quoted == "fence" || quoted.starts_with("fence ");
        for quoted in page.split('`').skip(1).step_by(2).filter(is_command) {
            // A shell would end the command at `&&`.
            let quoted = quoted
                .split(" &&")
                .next()
                .unwrap_or_default()
                .replace("--help", "")
                .replace("[=DURATION]", "");
            // Brackets mark optional parts, which are dropped. Of alternatives in brackets, the first is taken.
            let without = |kept: usize| -> String {
                let parts = quoted.split(['[', ']']).enumerate();
                parts.filter(|(at, _)| at % 2 == 0 || *at < kept * 2).map(|(_, part)| part).collect()
            };
            let parse =
                |text: String| crate::command_line::definition().try_get_matches_from(shell_words(&text));
            if let Err(e) = parse(without(0)).or_else(|_| parse(without(1))) {
                panic!("`{quoted}` on the page is not a command: {e}");
            }
            seen += 1;
        }
        seen
    }

    fn shell_words(text: &str) -> Vec<String> {
        let parts = text.split('"').enumerate();
        parts
            .flat_map(|(at, part)| match at % 2 {
                1 => vec![part.to_owned()],
                _ => part.split_whitespace().map(str::to_owned).collect(),
            })
            .collect()
    }
}
