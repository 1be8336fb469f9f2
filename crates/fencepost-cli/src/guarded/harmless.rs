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
/// Other commands that run nothing that the line wrote.
const CALM: &str = "[ } break chmod continue done exit fi for mkdir rm set test touch true";
const GIT: &str = "add blame branch checkout cherry-pick commit config diff for-each-ref grep help log merge-base reflog \
                   rev-list rev-parse shortlog show stash status switch tag";
/// They change the meaning of the line's other commands.
const UNKNOWN: &str =
    "alias builtin case command coproc declare enable eval fc function hash history shopt trap typeset";
/// Programs with their subcommands that only read, or whose arguments are names and messages; and parts of options with which they
/// run another program or write a file.
const KNOWN: [(&str, &str, &str); 9] = [
    ("git", GIT, "O --op --out"),
    ("helm", "lint list search show status", ""),
    ("kubectl", "auth describe explain get help logs", ""),
    ("man", "", "-"),
    ("npm", "help", ""),
    ("rg", "", "--pre --host"),
    ("sort", "", "--co"),
    ("terraform", "fmt plan show validate", ""),
    ("xargs", "cat grep head ls tail wc", ""),
];
/// Options of fence and gh whose value is text.
const VALUES: &str =
    "--body -b --title -t --notes -n --comment -c --subject --search -S --output --reason --note";
/// Commands of fence that run another one or lift the guard, and the mark before another command.
const FENCE_RUNS: &str = "demo lift lock loop once run/lift work --";
/// Names by which a command reads the line, its output or its last word.
const READ: &str =
    "$_ ${_ /dev/fd /dev/std /proc/ BASH_ ENV= EDITOR .editor GIT_ PAGER .pager PATH PS4 VISUAL";
/// Parts of the names of files that git or a shell runs or obeys without being told.
const OBEYED: &str = ".git -commit pre-push /bin/ /bin\n config\n config/git hook husky";

fn is_in(list: &str, word: &str) -> bool {
    !word.is_empty() && list.split(' ').any(|listed| listed == word)
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
    let is_read = any(&|command| {
        let (own, program, is_nested) = (command.own(), command.word(0), command.is_nested);
        // They can print a message that was stored before, and the line may run it.
        let prints = is_nested && is_in("fence gh git", program) && subcommand(command) != "branch";
        let is_text = is_in(TEXT, program) && is_inert(command) && command.words.len() == own.len();
        let reads = !is_text && (command.is_piped || is_nested && any(&|other| other.is_piped));
        // `command -p alias`; `env $x` and `bash -c "$(ls)"`, and nobody knows what they run.
        let is_open = |word: &Word| !word.is_literal() && !is_in("[ [[", program);
        let is_unknown = own.iter().any(|word| is_in(UNKNOWN, &word.text) || is_open(word));
        prints || reads || is_unknown && !is_calm(command) || commands.len() > 1 && sets(command)
    });
    // Also `.g""it/config`. A later command may run or obey such a file without naming it.
    let words = commands.iter().flat_map(|command| &command.words).chain(&line.written);
    let text = words.fold(line.text.to_owned(), |text, word| text + "\n" + &word.text) + "\n";
    let known = [".github", ".gitignore", "#!/usr/bin/", "#!/bin/"];
    let text = known.iter().fold(text, |text, name| text.replace(name, ""));
    let names = [(true, READ), (any(&|command| command.word(0) == "git"), ".git --git-"), (writes, OBEYED)];
    let is_obeyed = line.written.iter().any(|file| !file.is_literal() || file.text.starts_with('-'))
        || names.iter().any(|(counts, list)| *counts && list.split(' ').any(|part| text.contains(part)));
    let is_only_shown = !is_read && !is_obeyed && (!writes || commands.iter().all(is_calm));
    let mut spans = if is_only_shown { line.comments } else { Vec::new() };
    for command in commands.iter().filter(|command| !command.is_nested && command.is_plain()) {
        let (own, program) = (command.own(), command.word(0));
        let is_guarded = rules.guard(command, subcommand(command));
        let options = own.iter().map(|word| &*word.text).filter(|text| text.starts_with('-'));
        let is_help = !is_read && is_guarded && own.iter().all(Word::is_literal) && options.eq(["--help"]);
        let is_all = is_only_shown && is_inert(command) && !is_guarded || is_help;
        let is_gh = is_only_shown && program == "gh" && is_in("issue pr release", command.word(1));
        let is_value = |place: usize| is_gh && place > 0 && is_in(VALUES, &own[place - 1].text);
        let text =
            (0..own.len()).filter(|place| own[*place].kind < Kind::Runs && (is_all || is_value(*place)));
        spans.extend(text.map(|place| own[place].span.clone()));
        spans.extend(command.documents.iter().filter(|_| is_all).cloned());
    }
    spans
}

/// Does the command run nothing that the line wrote?
fn is_calm(command: &Command) -> bool {
    let (own, program) = (command.own(), command.word(0));
    let is_checked = own.len() == 3 && command.word(1) == "-n" && command.word(2).ends_with(".sh");
    let only_checks = is_checked && is_in("bash sh zsh", program) && own.iter().all(Word::is_literal);
    // `test -v "$(…)"` runs what it reads.
    let is_fixed = |word: &Word| word.kind < Kind::Runs && !word.is_split && word.text != "-v";
    let is_calm = is_in(CALM, program) && own.iter().all(is_fixed);
    // These may obey files of any name.
    let is_inert = is_inert(command) && !is_in("helm kubectl man npm terraform", program);
    own.is_empty() || command.is_plain() && (is_calm || only_checks || is_inert)
}

/// Does it change what the line's other commands do?
fn sets(command: &Command) -> bool {
    let options = "-e -u -x -eu -ex -eux -o -euo -euxo pipefail";
    let mut words = command.own().iter().skip(1);
    match command.word(0) {
        "git" => subcommand(command) == "config" && !words.any(|word| word.text.starts_with("user.")),
        "set" => words.any(|word| !word.is_literal() || !is_in(options, &word.text)),
        _ => false,
    }
}

/// The word after the program and after options of git and xargs that need no look.
fn subcommand(command: &Command) -> &str {
    let mut options = [("-C", 3), ("--no-pager", 2), ("-0", 2), ("-r", 2)].into_iter();
    let place = options.find_map(|(option, place)| (option == command.word(1)).then_some(place));
    command.word(place.unwrap_or(1))
}

/// Does the command run nothing, and are its arguments text, names or options?
fn is_inert(command: &Command) -> bool {
    let (program, mut words) = (command.word(0), command.own().iter().skip(1));
    let (_, subcommands, options) = KNOWN.into_iter().find(|known| known.0 == program).unwrap_or_default();
    // `$x`, `{a,b}`, `-$x`.
    let may_be = |word: &Word| word.is_split || !word.is_literal() && word.text.starts_with(['$', '{', '-']);
    let has = |word: &Word, part| may_be(word) || word.text.starts_with('-') && word.text.contains(part);
    let expands = command.own().iter().any(|word| word.kind > Kind::Quoted);
    // With these a script of awk runs a command or writes a file.
    let runs = |word: &Word| "system getline | > @".split(' ').any(|part| word.text.contains(part));
    match program {
        "fence" => is_fence(command) && !words.any(|word| is_in(FENCE_RUNS, &word.text)),
        "sed" => {
            let script = words.find(|word| !is_in("-E -i -n -r", &word.text));
            script.is_some_and(|word| word.is_literal() && is_script(&word.text))
                && !words.any(|word| has(word, "-"))
        }
        "awk" => !expands && !words.any(|word| runs(word) || has(word, "") && !word.text.starts_with("-F")),
        _ if words.any(|word| options.split_whitespace().any(|part| has(word, part))) => false,
        _ if subcommands.is_empty() => is_in(TEXT, program),
        _ => is_in(subcommands, subcommand(command)),
    }
}

/// Is it a command of fence whose words are all known, except texts of a task?
pub fn is_fence(command: &Command) -> bool {
    let own = command.own();
    let is_value = |option: &str| option.starts_with("--") && is_in(VALUES, option);
    let is_known = |place: usize| own[place].is_literal() || is_value(&own[place - 1].text);
    command.word(0) == "fence" && (1..own.len()).all(is_known)
}

/// `s/one/other/g`, `/one/p` or `1,9p`: with others, sed runs or writes what it matched.
fn is_script(script: &str) -> bool {
    let delimiter = script.strip_prefix('s').and_then(|rest| rest.chars().next()).unwrap_or('/');
    let last = match script.split(delimiter).collect::<Vec<_>>()[..] {
        ["s", _, _, flags] => flags,
        ["", _, command] | [command] => command,
        _ => return false,
    };
    last.chars().all(|c| c.is_ascii_digit() || "gIipd$,".contains(c))
}
