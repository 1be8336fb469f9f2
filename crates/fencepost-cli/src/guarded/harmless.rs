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
    ("git", "-O --open --ext-diff --output"),
    ("man", "-P --pager -H --html"),
    ("printf", "-v"),
    ("rg", "--pre --hostname-bin"),
];
/// Options of gh whose value is text.
const GH_TEXT: &str = "--body -b --title -t --notes -n --comment -c --subject --search -S";
/// Programs that run nothing of what they read from a pipe.
const SINKS: &str =
    "cat col column cut egrep fgrep fold grep head jq less more nl rg sort tail tee tr uniq wc";
/// Other commands that run nothing that was written before.
const CALM: &str = "[ } break chmod continue done exit export fi for mkdir rm set test touch true";
/// They change the meaning of the line's other commands.
const UNKNOWN: &str = "alias case coproc enable eval function hash";
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
    let mut spans = Line::parse(line).map(|line| proven(line, rules)).unwrap_or_default();
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
fn proven(line: Line<'_>, rules: &Rules) -> Vec<Range<usize>> {
    let commands = &line.commands;
    if commands.iter().any(|command| is_in(UNKNOWN, command.word(0))) {
        return Vec::new();
    }
    let writes = line.writes || commands.iter().any(writes);
    let is_read = line.is_used || commands.iter().any(|command| command.is_piped && !is_sink(command));
    let is_only_shown = !is_read && (!writes || commands.iter().all(is_calm));
    let mut spans = line.comments;
    for command in commands.iter().filter(|command| !command.is_nested && command.is_plain()) {
        let is_guarded = rules.guard(command.word(0), subcommand(command));
        if asks_for_help(command, rules) || (is_text(command, is_only_shown) && !is_guarded) {
            let text = command.own().iter().filter(|word| word.kind < Kind::Runs);
            spans.extend(text.map(|word| word.span.clone()).chain(command.documents.iter().cloned()));
        } else if command.word(0) == "gh" && is_in("issue pr release", command.word(1)) {
            let is_text = |pair: &&[Word]| is_in(GH_TEXT, &pair[0].text) && pair[1].kind < Kind::Runs;
            let values = command.own().windows(2).filter(is_text);
            spans.extend(values.map(|pair| pair[1].span.clone()).chain(command.documents.iter().cloned()));
        }
    }
    spans
}

/// Does the command write a file without a redirection?
fn writes(command: &Command) -> bool {
    let starts = |option: &str| command.own().iter().any(|word| word.text.starts_with(option));
    is_in("apply_patch tee", command.word(0)) || (command.word(0) == "sed" && starts("-i")) || starts("-o")
}

/// Does the command run nothing that the line wrote?
fn is_calm(command: &Command) -> bool {
    let program = command.word(0);
    let only_checks = match command.word(1) {
        "-n" => is_in("bash sh zsh", program),
        flag => is_in("node python python3", program) && is_in("-c -e", flag),
    };
    let is_listed =
        is_in(TEXT, program) || is_in(SINKS, program) || is_in(CALM, program) || program == "fence";
    command.own().is_empty() || command.is_plain() && (only_checks || is_listed || has_subcommand(command))
}

/// Does the command run nothing of what it reads from a pipe?
fn is_sink(command: &Command) -> bool {
    let mut by_xargs = command.words.iter().skip(1).filter(|word| !is_in("-0 -r -t", &word.text));
    let runs_text =
        command.word(0) == "xargs" && by_xargs.next().is_some_and(|word| is_in(SINKS, &word.text));
    command.words.len() == command.own().len() && (is_in(SINKS, command.word(0)) || runs_text)
}

/// The word after the program and after the options of git that need no look.
fn subcommand(command: &Command) -> &str {
    match (command.word(0), command.word(1)) {
        ("git", "-C") => command.word(3),
        ("git", "--no-pager") => command.word(2),
        (_, first) => first,
    }
}

fn has_subcommand(command: &Command) -> bool {
    is_in(of(&SUBCOMMANDS, command.word(0)), subcommand(command))
}

/// Are all words of the command text? `is_only_shown`: nothing runs what the command prints.
fn is_text(command: &Command, is_only_shown: bool) -> bool {
    let program = command.word(0);
    let starts = |option: &str| command.own().iter().any(|word| word.text.starts_with(option));
    let runs = of(&RUNNING_OPTIONS, program).split_whitespace().any(starts);
    let is_harmless = |word: &Word| word.kind == Kind::Bare || is_substitution(&word.text);
    match (program, subcommand(command)) {
        _ if runs => false,
        ("fence", _) => {
            let is_known = command.own().get(1).is_some_and(|word| word.kind == Kind::Bare);
            is_known && !command.own().iter().any(|word| is_in(FENCE_RUNS, &word.text))
        }
        // They do not print their message.
        ("git", "commit" | "stash" | "tag") => true,
        ("sed", _) => is_only_shown && command.own()[1..].iter().all(is_harmless),
        _ => is_only_shown && (is_in(TEXT, program) || has_subcommand(command)),
    }
}

/// Does a guarded program only print its usage?
fn asks_for_help(command: &Command, rules: &Rules) -> bool {
    let Some((last, words)) = command.own().split_last() else { return false };
    let is_bare = |word: &Word| word.kind == Kind::Bare && !word.text.starts_with('-');
    is_in("--help -h", &last.text)
        && words.iter().all(is_bare)
        && rules.guard(command.word(0), command.word(1))
}

/// `s/one/other/g`: with the flag `e`, sed runs what it wrote.
fn is_substitution(script: &str) -> bool {
    let Some(delimiter) = script.strip_prefix('s').and_then(|rest| rest.chars().next()) else { return false };
    let parts: Vec<_> = script.split(delimiter).collect();
    matches!(parts[..], [_, _, _, flags] if flags.chars().all(|c| c.is_ascii_digit() || "gIip".contains(c)))
}
