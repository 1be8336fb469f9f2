//! Expands words as the shell would, as far as the line itself tells: braces, variables assigned in the line,
//! substitutions that only print. The rest becomes [`UNKNOWN`].

use std::cell::Cell;
use std::collections::HashMap;

use super::syntax::{Assign, AssignKind, Command, Script, Symbol, Word};

/// Stands for text that is not known before the command runs. A private-use character: a line that contains it is
/// only treated more cautiously.
pub(super) const UNKNOWN: char = '\u{f8ff}';

/// Words from one brace expansion, and values of one variable. Beyond it the word is unknown.
const MAX_ALTERNATIVES: usize = 32;
/// A value longer than this is unknown, so that `x=$x$x` cannot double without end.
const MAX_VALUE: usize = 64 * 1024;

/// One argument of a command.
#[derive(Debug, Clone, Default)]
pub(super) struct Field {
    /// The possible texts: more than one for the variable of a `for`.
    pub texts: Vec<String>,
    /// Text that substitutions inside it may print.
    pub printed: Vec<String>,
}

impl Field {
    pub fn of(text: impl Into<String>) -> Field {
        Field { texts: vec![text.into()], printed: Vec::new() }
    }

    /// For messages, and where only one reading is tried.
    pub fn first(&self) -> &str {
        self.texts.first().map_or("", String::as_str)
    }

    pub fn is_unknown(&self) -> bool {
        self.texts.iter().any(|text| !text.is_empty() && text.chars().all(|c| c == UNKNOWN))
    }

    fn push(&mut self, c: char) {
        for text in &mut self.texts {
            text.push(c);
        }
    }
}

#[derive(Debug)]
pub(super) struct Variables<'a> {
    values: HashMap<String, Vec<String>>,
    fuel: &'a Cell<usize>,
}

impl<'a> Variables<'a> {
    pub fn new(fuel: &'a Cell<usize>) -> Self {
        Variables { values: HashMap::new(), fuel }
    }

    fn spend(&self, steps: usize) {
        self.fuel.set(self.fuel.get().saturating_sub(steps));
    }

    /// Records an assignment. Values of the same name are kept: which of them holds depends on the flow.
    pub fn assign(&mut self, assign: &Assign) {
        let mut new: Vec<String> = match assign.kind {
            AssignKind::Each => {
                assign.values.iter().flat_map(|word| self.fields(word)).flat_map(|f| f.texts).collect()
            }
            AssignKind::Array => {
                let fields = assign.values.iter().flat_map(|word| self.fields(word));
                vec![fields.map(|field| field.first().to_owned()).collect::<Vec<_>>().join(" ")]
            }
            AssignKind::Set | AssignKind::Append => {
                assign.values.iter().flat_map(|word| self.text(word).texts).collect()
            }
        };
        if new.is_empty() {
            new.push(UNKNOWN.to_string());
        }
        let values = self.values.entry(assign.name.clone()).or_default();
        if assign.kind == AssignKind::Append && !values.is_empty() {
            let old = std::mem::take(values);
            new = old.iter().flat_map(|old| new.iter().map(move |new| format!("{old}{new}"))).collect();
        }
        values.extend(new);
        values.dedup();
        if values.len() > MAX_ALTERNATIVES || values.iter().any(|value| value.len() > MAX_VALUE) {
            *values = vec![UNKNOWN.to_string()];
        }
    }

    /// The word as one text, as in an assignment or a here-document.
    pub fn text(&self, word: &Word) -> Field {
        self.expand(&word.symbols, true, false).pop().unwrap_or_else(|| Field::of(""))
    }

    /// The arguments that the word becomes: none, one or many.
    pub fn fields(&self, word: &Word) -> Vec<Field> {
        self.braces(&word.symbols)
            .iter()
            .flat_map(|symbols| self.expand(symbols, word.quoted, true))
            .collect()
    }

    fn expand(&self, symbols: &[Symbol], keep_empty: bool, split: bool) -> Vec<Field> {
        self.spend(symbols.len());
        let mut fields = vec![Field::of("")];
        let mut skip_to = 0;
        for (at, symbol) in symbols.iter().enumerate() {
            if at < skip_to || self.fuel.get() == 0 {
                continue;
            }
            let field = fields.last_mut().expect("starts with one");
            match symbol {
                Symbol::Char('*' | '?') if split => field.push(UNKNOWN),
                Symbol::Char('[') if split => {
                    match symbols[at..].iter().take(64).position(|s| matches!(s, Symbol::Char(']'))) {
                        Some(end) => {
                            skip_to = at + end + 1;
                            field.push(UNKNOWN);
                        }
                        None => field.push('['),
                    }
                }
                Symbol::Char(c) | Symbol::Quoted(c) => field.push(*c),
                Symbol::Unknown(scripts) => {
                    field.push(UNKNOWN);
                    field.printed.extend(scripts.iter().flat_map(|script| self.printed(script)));
                }
                Symbol::Variable { name, quoted } => match self.values.get(name) {
                    None if name == "IFS" && !quoted && split => fields.push(Field::of("")),
                    None => field.push(UNKNOWN),
                    Some(values) => self.insert(values, split && !quoted, &mut fields),
                },
                Symbol::Output { script, quoted } => match self.output(script) {
                    Some(text) => self.insert(&[text], split && !quoted, &mut fields),
                    None => {
                        field.push(UNKNOWN);
                        field.printed.extend(self.printed(script));
                    }
                },
            }
        }
        if split && !(keep_empty && fields.len() == 1) {
            fields.retain(|field| field.texts.iter().any(|text| !text.is_empty()));
        }
        fields
    }

    fn insert(&self, values: &[String], split: bool, fields: &mut Vec<Field>) {
        self.spend(values.iter().map(String::len).sum());
        let field = fields.last_mut().expect("starts with one");
        let blank = |value: &String| value.contains(char::is_whitespace);
        if let ([value], true) = (values, split && values.iter().any(blank)) {
            for (at, part) in value.split(char::is_whitespace).enumerate() {
                if at > 0 {
                    fields.push(Field::of(""));
                }
                let field = fields.last_mut().expect("starts with one");
                field.texts.iter_mut().for_each(|text| text.push_str(part));
            }
        } else if (split && values.iter().any(blank)) || values.len() * field.texts.len() > MAX_ALTERNATIVES {
            field.push(UNKNOWN);
        } else {
            let texts =
                field.texts.iter().flat_map(|text| values.iter().map(move |value| format!("{text}{value}")));
            field.texts = texts.collect();
        }
    }

    /// `a{b,c}d` as `abd acd`.
    fn braces(&self, symbols: &[Symbol]) -> Vec<Vec<Symbol>> {
        let mut done = Vec::new();
        let mut todo = vec![symbols.to_vec()];
        while let Some(symbols) = todo.pop() {
            if done.len() + todo.len() > MAX_ALTERNATIVES {
                return vec![vec![Symbol::Unknown(Vec::new())]];
            }
            match self.first_braces(&symbols) {
                Some((start, cuts)) => {
                    let end = cuts[cuts.len() - 1];
                    let parts =
                        cuts.iter().scan(start, |from, cut| Some((std::mem::replace(from, *cut) + 1, *cut)));
                    let words = parts.map(|(from, to)| {
                        [&symbols[..start], &symbols[from..to], &symbols[end + 1..]].concat()
                    });
                    todo.extend(words.collect::<Vec<_>>().into_iter().rev());
                }
                None => done.push(symbols),
            }
        }
        done
    }

    /// Where the first brace expansion opens, and its commas and closing brace.
    fn first_braces(&self, symbols: &[Symbol]) -> Option<(usize, Vec<usize>)> {
        for start in (0..symbols.len()).filter(|at| matches!(symbols[*at], Symbol::Char('{'))) {
            let (mut depth, mut cuts) = (0, Vec::new());
            for (at, symbol) in symbols.iter().enumerate().skip(start) {
                self.spend(1);
                match symbol {
                    Symbol::Char('{') => depth += 1,
                    Symbol::Char('}') => depth -= 1,
                    Symbol::Char(',') if depth == 1 => cuts.push(at),
                    _ => {}
                }
                if depth == 0 {
                    if !cuts.is_empty() {
                        cuts.push(at);
                        return Some((start, cuts));
                    }
                    break;
                }
            }
            if self.fuel.get() == 0 {
                break;
            }
        }
        None
    }

    /// The output of a script that only prints words of the line: `echo`, `printf` without formats, `cat <<EOF`.
    fn output(&self, script: &Script) -> Option<String> {
        let [command] = script.commands.as_slice() else { return None };
        let fields: Vec<_> = command.words.iter().flat_map(|word| self.fields(word)).collect();
        let (program, arguments) = fields.split_first()?;
        let text = match (program.first(), arguments) {
            ("echo", arguments) => {
                let words =
                    arguments.iter().map(Field::first).skip_while(|word| matches!(*word, "-n" | "-e" | "-E"));
                words.collect::<Vec<_>>().join(" ")
            }
            ("printf", [text]) if !text.first().contains('%') => text.first().to_owned(),
            ("printf", [format, text]) if matches!(format.first(), "%s" | "%s\\n") => text.first().to_owned(),
            ("cat", []) if !command.inputs.is_empty() => self.inputs(command).0.concat(),
            _ => return None,
        };
        (fields.iter().all(|field| field.texts.len() == 1) && !text.contains('\\'))
            .then(|| text.trim_end_matches('\n').to_owned())
    }

    /// The text of here-documents and here-strings, and text that substitutions in them may print.
    pub fn inputs(&self, command: &Command) -> (Vec<String>, Vec<String>) {
        let fields = command.inputs.iter().filter_map(|word| word.get()).map(|word| self.text(word));
        let (texts, printed): (Vec<_>, Vec<_>) = fields.map(|field| (field.texts, field.printed)).unzip();
        (texts.concat(), printed.concat())
    }

    /// Every text that a command may print because it is among its arguments or its input.
    pub fn printed_by(&self, command: &Command) -> Vec<String> {
        if self.fuel.get() == 0 {
            return Vec::new();
        }
        let fields: Vec<_> = command.words.iter().flat_map(|word| self.fields(word)).skip(1).collect();
        let joined = fields.iter().map(Field::first).collect::<Vec<_>>().join(" ");
        let mut printed = vec![joined];
        printed.extend(fields.into_iter().flat_map(|field| [field.texts, field.printed].concat()));
        let (texts, more) = self.inputs(command);
        printed.extend([texts, more].concat());
        let unescaped =
            printed.iter().filter(|text| text.contains("\\n")).map(|text| text.replace("\\n", "\n"));
        let unescaped: Vec<_> = unescaped.collect();
        printed.extend(unescaped);
        // Allocations cost more than characters.
        self.spend(printed.iter().map(|text| 16 + text.len()).sum());
        printed
    }

    fn printed(&self, script: &Script) -> Vec<String> {
        script.commands.iter().flat_map(|command| self.printed_by(command)).collect()
    }
}
