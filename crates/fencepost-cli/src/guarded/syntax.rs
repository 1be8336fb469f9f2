//! Shell text after parsing: simple commands, and their words before expansion.

use std::cell::OnceCell;
use std::rc::Rc;

#[derive(Debug, Default)]
pub(super) struct Script {
    pub commands: Vec<Command>,
}

#[derive(Debug, Default)]
pub(super) struct Command {
    pub words: Vec<Word>,
    pub assigns: Vec<Assign>,
    /// Here-documents, here-strings and `< <(…)`.
    pub inputs: Vec<Rc<OnceCell<Word>>>,
    /// Words that are only expanded: targets of other redirections, arithmetic.
    pub others: Vec<Word>,
    /// A `|` stands between the previous command and this one.
    pub piped: bool,
    /// A bracket or keyword of a compound command stands between the previous command and this one.
    pub crossed: bool,
}

impl Command {
    pub fn is_empty(&self) -> bool {
        self.words.is_empty() && self.assigns.is_empty() && self.inputs.is_empty() && self.others.is_empty()
    }
}

#[derive(Debug)]
pub(super) struct Assign {
    pub name: String,
    pub kind: AssignKind,
    pub values: Vec<Word>,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum AssignKind {
    Set,
    Append,
    Array,
    /// `for NAME in VALUES`: one of the values.
    Each,
}

#[derive(Debug, Default, Clone)]
pub(super) struct Word {
    pub symbols: Vec<Symbol>,
    /// Some of it was quoted, so an empty word is still a word.
    pub quoted: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Symbol {
    Char(char),
    Quoted(char),
    Variable {
        name: String,
        quoted: bool,
    },
    /// `$(…)` and backticks.
    Output {
        script: Rc<Script>,
        quoted: bool,
    },
    /// Text that is not known before the command runs, with the substitutions inside it.
    Unknown(Vec<Rc<Script>>),
}

impl Word {
    /// The word's text if nothing in it is quoted or expanded, as keywords must be.
    pub fn plain(&self) -> Option<String> {
        if self.quoted {
            return None;
        }
        self.symbols.iter().map(|symbol| if let Symbol::Char(c) = symbol { Some(*c) } else { None }).collect()
    }

    /// `NAME=value` and `NAME+=value`.
    pub fn assignment(&self) -> Option<(String, AssignKind, Word)> {
        let mut name = String::new();
        for (at, symbol) in self.symbols.iter().enumerate() {
            match symbol {
                Symbol::Char('=') if !name.is_empty() => {
                    let (name, kind) = match name.strip_suffix('+') {
                        Some(name) => (name.to_owned(), AssignKind::Append),
                        None => (name, AssignKind::Set),
                    };
                    return Some((
                        name,
                        kind,
                        Word { symbols: self.symbols[at + 1..].to_vec(), quoted: true },
                    ));
                }
                Symbol::Char('+') if !name.is_empty() && !name.ends_with('+') => name.push('+'),
                Symbol::Char(c) if *c == '_' || c.is_ascii_alphabetic() => name.push(*c),
                Symbol::Char(c) if !name.is_empty() && c.is_ascii_digit() => name.push(*c),
                _ => return None,
            }
        }
        None
    }

    pub fn scripts(&self) -> impl Iterator<Item = &Rc<Script>> {
        self.symbols.iter().flat_map(|symbol| match symbol {
            Symbol::Output { script, .. } => std::slice::from_ref(script),
            Symbol::Unknown(scripts) => scripts.as_slice(),
            _ => &[],
        })
    }
}
