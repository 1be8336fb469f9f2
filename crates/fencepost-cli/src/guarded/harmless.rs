//! The proof that words of a line only are text: the arguments of `echo`, the message of a commit, a comment.

use super::{
    Rules,
    shell::{Command, Kind, Line, Word},
};
use std::ops::Range;

/// Programs that print or search their arguments and what they read, and run nothing of it.
const TEXT: &str = "apply_patch awk cat cd col cut echo egrep fgrep fold grep head jq ls man nl printf rg sed sort \
                    pgrep tail tee tr uniq wc which xargs";
/// Those of them that may write a file without a redirection.
const WRITERS: &str = "apply_patch sed sort tee uniq";
const XARGS: &str = "cat grep head ls tail wc";
/// Other commands that run nothing that the line wrote.
const CALM: &str = "[ } break chmod continue done exit fi for mkdir rm set test touch true";
const GIT: &str = "add blame branch checkout cherry-pick commit diff for-each-ref grep help log merge-base reflog \
                   rev-list rev-parse shortlog show stash status switch tag worktree";
/// They change the meaning of the line's other commands.
const UNKNOWN: &str =
    "alias builtin case command coproc declare enable eval fc function hash history shopt trap typeset";
/// Subcommands that only read, or whose arguments are names and messages.
const SUBCOMMANDS: [(&str, &str); 5] = [
    ("git", GIT),
    ("helm", "lint list search show status"),
    ("kubectl", "auth describe explain get help logs"),
    ("npm", "help"),
    ("terraform", "fmt plan show validate"),
];
/// Parts of options with which these programs run another one, write a file, or set a variable.
const OPTIONS: [(&str, &str); 5] =
    [("git", "O --op --out"), ("man", "-"), ("printf", "-v"), ("rg", "--pre --host"), ("sort", "--co")];
/// Options of fence and gh whose value is text.
const VALUES: &str =
    "--body -b --title -t --notes -n --comment -c --subject --search -S --output --reason --note";
/// Commands of fence that run another one or lift the guard, and the mark before another command.
const FENCE_RUNS: &str = "demo lift lock loop once run/lift work --";
/// Names that lead to the output of a line or to the line itself.
const READ: &str = "/dev/fd /dev/std /proc/ BASH_ PATH= EDITOR .editor";
/// Names that lead to what git got before, such as a message.
const KEPT: &str = ".git EDITMSG --git-";
/// Parts of the names of files that git or a shell runs or obeys without being told.
const OBEYED: &str = ".git /bin/ config/git hook husky";

fn is_in(list: &str, word: &str) -> bool {
    !word.is_empty() && list.split(' ').any(|listed| listed == word)
}

fn of(list: &[(&str, &'static str)], program: &str) -> &'static str {
    list.iter().find(|(name, _)| *name == program).map_or("", |(_, words)| words)
}

/// The line without what is proven harmless. A command that is guarded itself never is.
pub fn removed(line: &str, rules: &Rules) -> String {
    let spans = Line::parse(line).map(|line| proven(line, rules)).unwrap_or_default();
    let mut left = line.as_bytes().to_vec();
    spans.into_iter().for_each(|span| left[span].fill(b' '));
    String::from_utf8_lossy(&left).into_owned()
}

fn proven(line: Line<'_>, rules: &Rules) -> Vec<Range<usize>> {
    let commands = &line.commands;
    let any = |is: &dyn Fn(&Command) -> bool| commands.iter().any(is);
    let writes = !line.written.is_empty() || any(&|command| is_in(WRITERS, command.word(0)));
    let makes_branch = commands.iter().filter(|command| command.word(0) == "git").count() > 1;
    let is_read = any(&|command| {
        let (program, is_nested) = (command.word(0), command.is_nested);
        // Fence, gh and git can print a message or a name that they got before.
        let prints = is_in("fence gh git", program) && (subcommand(command) != "branch" || makes_branch);
        let is_text = is_in(TEXT, program) && is_inert(command) && command.words.len() == command.own().len();
        let reads = !is_text && (command.is_piped || is_nested && any(&|other| other.is_piped));
        // `command -p alias`; `$x` and `al{ias,}`, and nobody knows what they are.
        let is_unknown = !is_inert(command) && command.own().iter().any(|word| is_in(UNKNOWN, &word.text));
        let is_any = !command.own().first().is_none_or(|word| word.is_literal() || word.text.contains('='));
        is_nested && prints || reads || is_unknown || is_any && !is_in("[ [[", program)
    });
    // A later command may run or obey such a file, and not name it.
    let known = [".github", ".gitignore", "#!/usr/bin/", "#!/bin/"];
    let text = known.iter().fold(line.text.to_owned(), |text, name| text.replace(name, ""));
    let names = [(true, READ), (any(&|command| command.word(0) == "git"), KEPT), (writes, OBEYED)];
    let is_obeyed = line.written.iter().any(|file| !file.is_literal())
        || names.iter().any(|(counts, list)| *counts && list.split(' ').any(|part| text.contains(part)));
    let is_only_shown = !is_read && !is_obeyed && (!writes || commands.iter().all(is_calm));
    let mut spans = line.comments;
    for command in commands.iter().filter(|command| !command.is_nested && command.is_plain()) {
        let (own, program) = (command.own(), command.word(0));
        let is_setting = commands.len() == 1 && program == "git" && subcommand(command) == "config";
        let is_guarded = rules.guard(command, subcommand(command));
        let is_bare = |word: &Word| word.is_literal() && word.kind == Kind::Bare;
        let options = own.iter().map(|word| &*word.text).filter(|text| text.starts_with('-'));
        let is_help = is_guarded && own.iter().all(is_bare) && options.eq(["--help"]);
        let is_text = (is_inert(command) || is_setting) && !is_guarded;
        let is_all = is_only_shown && is_text || is_help;
        let is_gh = is_only_shown && program == "gh" && is_in("issue pr release", command.word(1));
        let is_value = |place: usize| is_gh && place > 0 && is_in(VALUES, &own[place - 1].text);
        let text =
            (0..own.len()).filter(|place| own[*place].kind < Kind::Runs && (is_all || is_value(*place)));
        spans.extend(text.map(|place| own[place].span.clone()));
        spans.extend(command.documents.iter().filter(|_| is_all || is_gh).cloned());
    }
    spans
}

/// Does the command run nothing that the line wrote?
fn is_calm(command: &Command) -> bool {
    let own = command.own();
    let is_checked = own.len() == 3 && command.word(1) == "-n" && command.word(2).ends_with(".sh");
    let only_checks = is_checked && is_in("bash sh zsh", command.word(0));
    // `test -v "$(…)"` runs what it reads.
    let is_calm =
        is_in(CALM, command.word(0)) && own.iter().all(|word| word.kind < Kind::Runs && word.text != "-v");
    own.is_empty() || command.is_plain() && (is_calm || only_checks || is_inert(command))
}

/// The word after the program and after the options of git that need no look.
fn subcommand(command: &Command) -> &str {
    let options = [("-C", 3), ("--no-pager", 2)].into_iter().find(|(option, _)| *option == command.word(1));
    command.word(options.map_or(1, |(_, place)| place))
}

/// Does the command run nothing, and are its arguments text, names or options?
fn is_inert(command: &Command) -> bool {
    let (program, mut words) = (command.word(0), command.own().iter().skip(1));
    // `$x`, `{a,b}`, `-$x`.
    let may_be = |word: &Word| !word.is_literal() && word.text.starts_with(['$', '{', '-']);
    let has = |word: &Word, part| may_be(word) || word.text.starts_with('-') && word.text.contains(part);
    let expands = command.own().iter().any(|word| word.kind > Kind::Quoted);
    // With these a script of awk runs a command or writes a file.
    let runs = |word: &Word| "system getline | > @".split(' ').any(|part| word.text.contains(part));
    match program {
        "fence" => runs_nothing(command),
        "sed" => {
            let script = words.find(|word| !is_in("-E -i -n -r", &word.text));
            script.is_some_and(|word| is_script(&word.text)) && !words.any(|word| has(word, "-"))
        }
        "cd" | "pushd" => words.all(|word| word.is_literal() && !word.text.ends_with(".git")),
        "xargs" => {
            words.find(|word| !is_in("-0 -r -t", &word.text)).is_some_and(|word| is_in(XARGS, &word.text))
        }
        "awk" => !expands && !words.any(|word| runs(word) || has(word, "") && !word.text.starts_with("-F")),
        _ if words.any(|word| of(&OPTIONS, program).split_whitespace().any(|part| has(word, part))) => false,
        _ => is_in(TEXT, program) || is_in(of(&SUBCOMMANDS, program), subcommand(command)),
    }
}

/// Is it a command of fence that runs no other one? All its words are known, except texts of a task.
pub fn runs_nothing(command: &Command) -> bool {
    let own = command.own();
    let is_value = |option: &str| option.starts_with("--") && is_in(VALUES, option);
    let is_known = |place: usize| own[place].is_literal() || is_value(&own[place - 1].text);
    command.word(0) == "fence"
        && (1..own.len()).all(|place| is_known(place) && !is_in(FENCE_RUNS, &own[place].text))
}

/// `s/one/other/g`, `/one/p` or `1,9p`: with others, sed runs or writes what it matched.
fn is_script(script: &str) -> bool {
    let delimiter = script.strip_prefix('s').and_then(|rest| rest.chars().next()).unwrap_or('/');
    let (flags, known) = match script.split(delimiter).collect::<Vec<_>>()[..] {
        ["s", _, _, flags] => (flags, "gIip"),
        ["", _, command] => (command, "dp"),
        [command] => (command, "$,p"),
        _ => return false,
    };
    flags.chars().all(|c| c.is_ascii_digit() || known.contains(c))
}
