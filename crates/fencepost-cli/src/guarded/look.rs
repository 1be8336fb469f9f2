//! Walks over the commands of a line, and into the commands that these run.

use std::cell::Cell;
use std::collections::HashSet;

use super::expand::{Field, UNKNOWN, Variables};
use super::parse::{MAX_DEPTH, parse};
use super::rules::{Rules, base_name, is_option};
use super::syntax::{Assign, Script};
use super::wrappers::{
    AFTER_DASHES, COMMAND_READERS, EACH_ARGUMENT, Runs, SHELLS, TEXT_OPTIONS, WRAPPERS, Wrapper,
};
use super::{Found, coarse};

/// Positions of a command line that may start a command of their own.
struct Starts {
    todo: Vec<usize>,
    seen: HashSet<usize>,
}

impl Starts {
    fn push(&mut self, at: usize) {
        if self.seen.insert(at) {
            self.todo.push(at);
        }
    }
}

/// Shell texts that a program runs.
#[derive(Default)]
struct Texts {
    /// Known from the line.
    known: Vec<String>,
    /// Printed by a substitution, perhaps rearranged.
    printed: Vec<String>,
}

impl Texts {
    fn field(&mut self, field: Option<&Field>) {
        if let Some(field) = field {
            self.known.extend_from_slice(&field.texts);
            self.printed.extend_from_slice(&field.printed);
        }
    }
}

pub(super) struct Look<'a> {
    rules: &'a Rules,
    variables: Variables<'a>,
    fuel: &'a Cell<usize>,
}

impl<'a> Look<'a> {
    pub fn new(rules: &'a Rules, fuel: &'a Cell<usize>) -> Self {
        Look { rules, variables: Variables::new(fuel), fuel }
    }

    fn spend(&self, steps: usize) -> bool {
        let left = self.fuel.get();
        self.fuel.set(left.saturating_sub(steps));
        left > steps
    }

    /// `stdin`: the texts that a shell inside may read as commands.
    pub fn text(&mut self, text: &str, depth: usize, stdin: &[String]) -> Option<Found> {
        if !self.spend(64) {
            return None;
        }
        match parse(text, depth, self.fuel) {
            Ok(script) => self.script(&script, depth, stdin),
            Err(_) => coarse(text, self.rules),
        }
    }

    fn script(&mut self, script: &Script, depth: usize, stdin: &[String]) -> Option<Found> {
        if depth > MAX_DEPTH {
            self.fuel.set(0);
        }
        for (at, command) in script.commands.iter().enumerate() {
            if !self.spend(1) {
                return None;
            }
            let assigned = command.assigns.iter().flat_map(|assign| &assign.values);
            let inputs = command.inputs.iter().filter_map(|word| word.get());
            for word in command.words.iter().chain(&command.others).chain(assigned).chain(inputs) {
                for inner in word.scripts() {
                    let found = self.script(inner, depth + 1, stdin);
                    if found.is_some() {
                        return found;
                    }
                }
            }
            for assign in &command.assigns {
                self.variables.assign(assign);
            }
            let fields: Vec<_> = command.words.iter().flat_map(|word| self.variables.fields(word)).collect();
            if matches!(
                fields.first().map(Field::first),
                Some("export" | "declare" | "typeset" | "local" | "readonly")
            ) {
                for (name, kind, value) in command.words.iter().filter_map(|word| word.assignment()) {
                    self.variables.assign(&Assign { name, kind, values: vec![value] });
                }
            }
            let found = self.command(fields, script, at, depth, stdin);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The text that command `at` may read from others: printed by the commands before it in the pipe.
    /// Within compound commands it is all the text of the script, because the parser keeps no tree.
    fn input(&self, script: &Script, at: usize, outer: &[String]) -> Vec<String> {
        let compound = script.commands[..=at].iter().any(|command| command.crossed);
        let first =
            if compound { 0 } else { (0..=at).rev().find(|i| !script.commands[*i].piped).unwrap_or(0) };
        let last = if compound { script.commands.len() } else { at };
        let commands = script.commands[first..last].iter().enumerate().filter(|(i, _)| first + i != at);
        let printed = commands.flat_map(|(_, command)| self.variables.printed_by(command));
        printed.chain(outer.iter().cloned()).collect()
    }

    fn command(
        &mut self,
        mut fields: Vec<Field>,
        script: &Script,
        at: usize,
        depth: usize,
        outer: &[String],
    ) -> Option<Found> {
        let mut starts = Starts { todo: vec![0], seen: HashSet::from([0]) };
        while let Some(start) = starts.todo.pop() {
            if start >= fields.len() || !self.spend(8 * self.rules.len()) {
                continue;
            }
            if let Some(rule) = self.rules.matching(&fields[start..], &|steps| self.spend(steps)) {
                return Some(found(rule, &fields[start..]));
            }
            if fields[start].is_unknown() {
                // It may be `sudo` or nothing at all.
                self.skip(&fields, start + 1, None, 0, Runs::Words, &mut starts);
            }
            let names: Vec<_> = fields[start].texts.iter().map(|text| base_name(text)).collect();
            for name in names {
                if !self.spend(8 * (fields.len() - start)) {
                    return None;
                }
                let mut texts = Texts::default();
                let reads_input = self.run_by(&name, start, &mut fields, &mut starts, &mut texts);
                if reads_input {
                    // Its own here-document is read as it is written.
                    let (known, printed) = self.variables.inputs(&script.commands[at]);
                    texts.known.extend(known);
                    texts.printed.extend(printed);
                }
                let input = if reads_input
                    || (!texts.known.is_empty() && !outer.is_empty())
                    || SHELLS.contains(&name.as_str())
                {
                    self.input(script, at, outer)
                } else {
                    Vec::new()
                };
                for text in &texts.known {
                    let found = self.text(text, depth + 1, &input);
                    if found.is_some() {
                        return found;
                    }
                }
                // Text of an `eval` or `sh -c` that is not known may be the input: `while read -r c; do eval "$c"; done`.
                let unknown = texts.known.iter().any(|text| text.trim_matches(UNKNOWN).trim().is_empty());
                if reads_input || unknown {
                    texts.printed.extend(self.input(script, at, outer));
                }
                let fed = self.fed(&texts.printed, depth);
                if fed.is_some() {
                    return fed;
                }
            }
        }
        None
    }

    /// Looks at text that a shell reads. Programs may rearrange it on the way, so the words of a rule in the right
    /// order are enough.
    fn fed(&mut self, texts: &[String], depth: usize) -> Option<Found> {
        for text in texts {
            if !self.spend(text.len()) {
                return None;
            }
            if let Some(rule) = self.rules.mentioned(text) {
                return Some(found(rule, &[Field::of(text.as_str())]));
            }
            let found = self.text(text, depth + 1, &[]);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Collects what the program at `start` runs: starts of commands on the same line, and shell texts. True if the
    /// program reads commands from standard input.
    fn run_by(
        &self,
        name: &str,
        start: usize,
        fields: &mut Vec<Field>,
        starts: &mut Starts,
        texts: &mut Texts,
    ) -> bool {
        let arguments = start + 1;
        let second = fields.get(arguments).map_or("", Field::first).to_owned();
        if SHELLS.contains(&name) {
            return shell(&fields[arguments..], texts);
        }
        match name {
            "command" if matches!(second.as_str(), "-v" | "-V" | "-pv" | "-pV") => return false,
            "eval" => self.joined(&fields[arguments..], texts),
            "trap" => texts.field(fields.get(arguments)),
            "source" | "." => {
                texts.printed.extend(fields.get(arguments).iter().flat_map(|field| field.printed.clone()));
                return second == "/dev/stdin" || second == "/dev/fd/0";
            }
            "find" | "fd" | "fdfind" => {
                replace(&mut fields[arguments..], "{}");
                for (at, field) in fields.iter().enumerate().skip(arguments) {
                    let exec = ["-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch"];
                    if exec.contains(&field.first()) {
                        starts.push(at + 1);
                    }
                }
            }
            "xargs" | "parallel" => {
                let at = fields[arguments..].iter().position(|field| field.first() == "-I");
                let mark = at
                    .and_then(|at| fields.get(arguments + at + 1))
                    .map_or("{}".to_owned(), |f| f.first().to_owned());
                if !mark.is_empty() {
                    let glued = fields[arguments..].iter().find_map(|field| field.first().strip_prefix("-I"));
                    let mark = glued.filter(|mark| !mark.is_empty()).unwrap_or(&mark).to_owned();
                    replace(&mut fields[arguments..], &mark);
                }
                // The words that it reads come last.
                fields.push(Field::of(UNKNOWN));
            }
            _ if name.starts_with("python") || name == "py" => {
                let module = fields[arguments..].iter().position(|field| field.first() == "-m");
                module.into_iter().for_each(|at| starts.push(arguments + at + 1));
            }
            "git" => self.git(arguments, fields, texts),
            _ => {}
        }
        if AFTER_DASHES.contains(&name)
            && let Some(at) = fields[arguments..].iter().position(|field| field.first() == "--")
        {
            starts.push(arguments + at + 1);
        }
        if EACH_ARGUMENT.contains(&name) {
            fields[arguments..].iter().for_each(|field| texts.field(Some(field)));
            self.joined(&fields[arguments..], texts);
            self.skip(fields, arguments, None, 0, Runs::Words, starts);
        }
        for (_, options) in TEXT_OPTIONS.iter().filter(|(program, _)| *program == name) {
            self.text_options(&fields[arguments..], options, texts);
        }
        for wrapper in WRAPPERS.iter().filter(|wrapper| wrapper.program == name) {
            self.wrapper(wrapper, arguments, fields, starts, texts);
        }
        let last_unknown = fields.len() == arguments + 1 && fields[arguments].is_unknown();
        (COMMAND_READERS.contains(&name) && texts.known.is_empty())
            || (name == "xargs" && last_unknown)
            || name == "parallel"
    }

    fn wrapper(
        &self,
        wrapper: &Wrapper,
        arguments: usize,
        fields: &[Field],
        starts: &mut Starts,
        texts: &mut Texts,
    ) {
        let mut inner = Starts { todo: Vec::new(), seen: HashSet::new() };
        if wrapper.subcommands.is_empty() {
            self.skip(fields, arguments, wrapper.values, wrapper.operands, wrapper.runs, &mut inner);
        } else {
            let mut subcommands = Starts { todo: Vec::new(), seen: HashSet::new() };
            self.skip(fields, arguments, None, 0, Runs::Words, &mut subcommands);
            for at in subcommands.todo {
                if wrapper.subcommands.contains(&fields[at].first()) {
                    self.skip(fields, at + 1, wrapper.values, wrapper.operands, wrapper.runs, &mut inner);
                }
            }
        }
        for at in inner.todo {
            match wrapper.runs {
                Runs::Words => starts.push(at),
                Runs::Text => self.joined(&fields[at..], texts),
            }
        }
    }

    /// `-c alias.x=push x`, `rebase --exec TEXT`.
    fn git(&self, arguments: usize, fields: &[Field], texts: &mut Texts) {
        for field in &fields[arguments..] {
            let text = field.first();
            if let Some((_, alias)) = text.strip_prefix("alias.").and_then(|alias| alias.split_once('=')) {
                texts.known.push(alias.strip_prefix('!').map_or(format!("git {alias}"), str::to_owned));
            }
        }
        if fields[arguments..].iter().any(|field| field.first() == "rebase") {
            self.text_options(&fields[arguments..], &["-x", "--exec"], texts);
        }
    }

    /// The positions after options and operands. With `values: None`, each option is read both with and without a
    /// separate value. Words such as `NAME=value` are skipped too, but shell text may itself start like that.
    fn skip(
        &self,
        fields: &[Field],
        from: usize,
        values: Option<&[&str]>,
        operands: usize,
        runs: Runs,
        starts: &mut Starts,
    ) {
        let mut seen = HashSet::new();
        let mut todo = vec![(from, operands)];
        while let Some((at, operands)) = todo.pop() {
            if at >= fields.len() || !seen.insert((at, operands)) || !self.spend(1) {
                continue;
            }
            let text = fields[at].first();
            if text == "--" || (operands == 0 && runs == Runs::Words && is_assignment(text)) {
                todo.push((at + 1, operands));
            } else if is_option(text) {
                let cluster = !text.starts_with("--") && text.len() > 2;
                let last = text.chars().next_back().map(|c| format!("-{c}")).unwrap_or_default();
                let (with, without) = match values {
                    Some(values) if values.contains(&text) => (true, false),
                    Some(values) => (cluster && values.contains(&last.as_str()), true),
                    None => (!text.contains('='), true),
                };
                todo.extend(without.then_some((at + 1, operands)));
                todo.extend(with.then_some((at + 2, operands)));
            } else if operands > 0 {
                todo.push((at + 1, operands - 1));
            } else {
                starts.push(at);
            }
        }
    }

    /// The words joined with spaces, as `eval` does.
    fn joined(&self, fields: &[Field], texts: &mut Texts) {
        let most = fields.iter().map(|field| field.texts.len()).max().unwrap_or(0);
        for n in 0..most {
            if !self.spend(fields.iter().map(|field| 16 + field.first().len()).sum()) {
                return;
            }
            let nth = fields.iter().map(|field| field.texts.get(n).map_or(field.first(), String::as_str));
            texts.known.push(nth.collect::<Vec<_>>().join(" "));
        }
        texts.printed.extend(fields.iter().flat_map(|field| field.printed.clone()));
    }

    /// The text after the first of these options: `-c TEXT`, `-qc TEXT`, `-cTEXT`, `--command=TEXT`.
    fn text_options(&self, fields: &[Field], options: &[&str], texts: &mut Texts) {
        for (at, field) in fields.iter().enumerate() {
            let text = field.first();
            for option in options {
                let short = option.len() == 2 && option.starts_with('-');
                let cluster =
                    short && is_option(text) && !text.starts_with("--") && text.ends_with(&option[1..]);
                if text == *option || cluster {
                    texts.field(fields.get(at + 1));
                    return self.joined(&fields[at + 1..], texts);
                } else if let Some(value) = text.strip_prefix(option) {
                    return texts.known.push(value.trim_start_matches('=').to_owned());
                }
            }
        }
    }
}

fn found(rule: &str, fields: &[Field]) -> Found {
    let mut command = fields.iter().map(Field::first).collect::<Vec<_>>().join(" ").replace(UNKNOWN, "…");
    if let Some((end, _)) = command.char_indices().nth(200) {
        command.truncate(end);
        command.push('…');
    }
    Found { rule: rule.to_owned(), command }
}

fn replace(fields: &mut [Field], mark: &str) {
    for text in fields.iter_mut().flat_map(|field| &mut field.texts).filter(|text| text.contains(mark)) {
        if !text.starts_with("-I") {
            *text = text.replace(mark, UNKNOWN.encode_utf8(&mut [0; 4]));
        }
    }
}

/// `NAME=value`.
fn is_assignment(text: &str) -> bool {
    let name = text.split_once('=').map_or("", |(name, _)| name);
    name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}

/// The texts that a shell runs; true if it reads them from standard input.
fn shell(arguments: &[Field], texts: &mut Texts) -> bool {
    let mut has_text = false;
    let mut at = 0;
    while let Some(field) = arguments.get(at) {
        let option = field.first();
        if let Some(text) = option.strip_prefix("--command=") {
            texts.known.push(text.to_owned());
            has_text = true;
        } else if option == "--command" {
            has_text = true;
        } else if option == "--" {
            at += 1;
            break;
        } else if is_option(option) || option.starts_with('+') {
            let letters = if option.starts_with("--") { "" } else { option };
            has_text |= letters.contains('c') && option.starts_with('-');
            at += usize::from(letters.contains(['o', 'O']) || matches!(option, "--rcfile" | "--init-file"));
        } else {
            break;
        }
        at += 1;
    }
    match arguments.get(at) {
        Some(operand) if has_text => texts.field(Some(operand)),
        Some(operand) => {
            texts.printed.extend_from_slice(&operand.printed);
            return matches!(operand.first(), "-" | "/dev/stdin" | "/dev/fd/0")
                || arguments[0].first() == "-s";
        }
        None => return !has_text,
    }
    false
}
