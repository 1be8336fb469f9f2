//! The proof that words of a line only are text: the arguments of `echo`, the message of a commit, a comment.

use super::{
    Rules,
    shell::{Command, Kind, Line, Word},
};
use std::ops::Range;

/// Programs that print their arguments, or search for them.
const TEXT: &str = "apply_patch cat cd echo egrep fgrep grep ls man printf rg sed tee which";
/// Subcommands that only read, or whose arguments are names and messages.
const SUBCOMMANDS: [(&str, &str); 3] = [
    (
        "git",
        "add blame branch checkout cherry-pick commit diff grep help log merge-base reflog rev-list rev-parse \
         shortlog show stash status switch tag worktree",
    ),
    ("kubectl", "auth describe explain get help logs"),
    ("npm", "help"),
];
/// Options with which these programs run another one, or give its text to a variable.
const RUNNING_OPTIONS: [(&str, &str); 4] = [
    ("git", "-O --open-files-in-pager --ext-diff"),
    ("man", "-P --pager -H --html"),
    ("printf", "-v"),
    ("rg", "--pre --hostname-bin"),
];
/// Options of gh whose value is text.
const GH_TEXT: &str = "--body -b --title -t --notes -n --comment -c --subject --search -S";
/// Programs that run nothing of what they read from a pipe.
const SINKS: &str =
    "cat col column cut egrep fgrep fold grep head jq less more nl rg sort tail tee tr uniq wc";
/// Programs that run a file.
const RUNNERS: &str = "sh bash zsh dash ksh source . eval xargs env exec sudo";
/// They change the meaning of the line's other commands.
const UNKNOWN: &str = "case function alias enable hash coproc";
/// Commands of fence that run another one, or are guarded.
const FENCE_RUNS: &str = "demo guard lift lock loop once work";

fn is_in(list: &str, word: &str) -> bool {
    !word.is_empty() && list.split(' ').any(|listed| listed == word)
}

fn of(list: &[(&str, &'static str)], program: &str) -> &'static str {
    list.iter().find(|(name, _)| *name == program).map_or("", |(_, words)| words)
}

/// The line without what is proven harmless. A command that is guarded itself never is.
pub fn removed(line: &str, rules: &Rules) -> String {
    let is_guarded = |command: &Command| rules.guard(command.word(0), subcommand(command));
    let mut spans = Line::parse(line).map(|line| proven(line, is_guarded)).unwrap_or_default();
    spans.sort_by_key(|span| span.start);
    let (mut out, mut from) = (String::new(), 0);
    for span in spans {
        out.push_str(line.get(from..span.start).unwrap_or_default());
        out.push(' ');
        from = from.max(span.end);
    }
    out + &line[from..]
}

/// The spans of the line that only are text.
fn proven(line: Line<'_>, is_guarded: impl Fn(&Command) -> bool) -> Vec<Range<usize>> {
    let commands = &line.commands;
    if commands.iter().any(|command| is_in(UNKNOWN, command.word(0))) {
        return Vec::new();
    }
    let is_runner = |command: &Command| is_in(RUNNERS, command.word(0)) && command.word(1) != "-n";
    let runs_files = commands.iter().any(|command| is_runner(command) || command.word(0).contains('/'));
    let is_read = line.is_used || commands.iter().any(|command| command.is_piped && !is_sink(command));
    let mut spans = line.comments;
    for command in commands.iter().filter(|command| !command.is_nested && command.is_plain()) {
        let is_written = command.writes || command.word(0) == "tee";
        let is_only_shown = !(is_read || is_written && runs_files);
        if asks_for_help(command) || (is_text(command, is_only_shown) && !is_guarded(command)) {
            let text = command.own().iter().filter(|word| word.kind < Kind::Runs);
            spans.extend(text.map(|word| word.span.clone()).chain(command.documents.iter().cloned()));
        } else if command.word(0) == "gh" {
            let is_text = |pair: &&[Word]| is_in(GH_TEXT, &pair[0].text) && pair[1].kind < Kind::Runs;
            let values = command.own().windows(2).filter(is_text);
            spans.extend(values.map(|pair| pair[1].span.clone()).chain(command.documents.iter().cloned()));
        }
    }
    spans
}

/// Does the command run nothing of what it reads from a pipe?
fn is_sink(command: &Command) -> bool {
    let run_by_xargs = command.own().iter().skip(1).find(|word| !word.text.starts_with('-'));
    is_in(SINKS, command.word(0))
        || (command.word(0) == "xargs" && run_by_xargs.is_some_and(|word| is_in(SINKS, &word.text)))
}

/// The word after the program and after the options of git that need no look.
fn subcommand(command: &Command) -> &str {
    match (command.word(0), command.word(1)) {
        ("git", "-C") => command.word(3),
        ("git", "--no-pager") => command.word(2),
        (_, first) => first,
    }
}

/// Are all words of the command text? `is_only_shown`: nothing runs what the command prints.
fn is_text(command: &Command, is_only_shown: bool) -> bool {
    let program = command.word(0);
    let starts = |option: &str| command.own().iter().any(|word| word.text.starts_with(option));
    let runs = of(&RUNNING_OPTIONS, program).split_whitespace().any(starts);
    let is_harmless = |word: &Word| word.kind == Kind::Bare || is_substitution(&word.text);
    match (program, subcommand(command)) {
        _ if runs => false,
        ("fence", _) => !command.own().iter().any(|word| is_in(FENCE_RUNS, &word.text)),
        // They do not print their message.
        ("git", "commit" | "stash" | "tag") => true,
        ("sed", _) => is_only_shown && command.own()[1..].iter().all(is_harmless),
        (_, subcommand) => {
            is_only_shown && (is_in(TEXT, program) || is_in(of(&SUBCOMMANDS, program), subcommand))
        }
    }
}

/// Does it only print its usage?
fn asks_for_help(command: &Command) -> bool {
    let (own, is_run) = (command.own(), is_in(RUNNERS, command.word(0)));
    let is_last = own.last().is_some_and(|word| is_in("--help -h", &word.text));
    is_last && !is_run && own.len() <= 5 && own.iter().all(|word| word.kind == Kind::Bare)
}

/// `s/one/other/g`: with the flag `e`, sed runs what it wrote.
fn is_substitution(script: &str) -> bool {
    let Some(delimiter) = script.strip_prefix('s').and_then(|rest| rest.chars().next()) else { return false };
    let parts: Vec<_> = script.split(delimiter).collect();
    matches!(parts[..], [_, _, _, flags] if flags.chars().all(|c| c.is_ascii_digit() || "gIip".contains(c)))
}
