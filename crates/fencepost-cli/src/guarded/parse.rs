//! Splits shell text into simple commands. It follows bash closely enough to know which words start a command, which
//! text is quoted, and which text is itself shell; it keeps no tree of loops and conditions.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use super::syntax::{Assign, AssignKind, Command, Script, Symbol, Word};

/// The text is not shell that this parser can follow, or is too deep or too long to follow.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unparsable;

type Parsed<T> = Result<T, Unparsable>;

/// Substitutions, `bash -c` and the like inside one another. People write two or three.
pub(super) const MAX_DEPTH: usize = 24;

/// Open `(` in one script. Each `((` is scanned to its end once, so the limit also bounds that work.
const MAX_PARENS: usize = 100;

pub(super) fn parse(text: &str, depth: usize, fuel: &Cell<usize>) -> Parsed<Script> {
    Parser::new(text.chars().collect(), depth, fuel).script(End::Text)
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum End {
    Text,
    Paren,
}

struct HereDocument {
    delimiter: String,
    strip_tabs: bool,
    quoted: bool,
    body: Rc<OnceCell<Word>>,
}

pub(super) struct Parser<'a> {
    pub(super) text: Vec<char>,
    pub(super) at: usize,
    depth: usize,
    fuel: &'a Cell<usize>,
    here_documents: Vec<HereDocument>,
}

/// The script under construction, and where in its compound commands the parser stands.
#[derive(Default)]
struct Builder {
    script: Script,
    current: Command,
    parens: usize,
    cases: usize,
    after_time: bool,
}

impl Builder {
    fn end(&mut self, piped: bool) {
        self.after_time = false;
        if self.current.is_empty() {
            self.current.piped |= piped;
        } else {
            let next = Command { piped, ..Command::default() };
            self.script.commands.push(std::mem::replace(&mut self.current, next));
        }
    }

    fn cross(&mut self) {
        self.end(false);
        self.current.crossed = true;
    }

    fn at_start(&self) -> bool {
        self.current.words.is_empty() && self.current.assigns.is_empty()
    }
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: Vec<char>, depth: usize, fuel: &'a Cell<usize>) -> Self {
        Parser { text, at: 0, depth, fuel, here_documents: Vec::new() }
    }

    pub(super) fn inner(&self, text: Vec<char>) -> Parser<'a> {
        Parser::new(text, self.depth + 1, self.fuel)
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    pub(super) fn peek_at(&self, ahead: usize) -> Option<char> {
        self.text.get(self.at + ahead).copied()
    }

    pub(super) fn spend(&self, steps: usize) -> Parsed<()> {
        let left = self.fuel.get();
        self.fuel.set(left.saturating_sub(steps));
        if left < steps { Err(Unparsable) } else { Ok(()) }
    }

    /// The script inside `$(`, `<(` or `>(`, up to and with its `)`.
    pub(super) fn nested(&mut self) -> Parsed<Rc<Script>> {
        self.deeper(|parser| parser.script(End::Paren)).map(Rc::new)
    }

    pub(super) fn whole(&mut self) -> Parsed<Script> {
        self.script(End::Text)
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    pub(super) fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    fn script(&mut self, end: End) -> Parsed<Script> {
        if self.depth > MAX_DEPTH {
            return Err(Unparsable);
        }
        let mut build = Builder::default();
        loop {
            self.spend(1)?;
            self.blanks();
            let Some(c) = self.peek() else {
                if end != End::Text || build.parens > 0 || build.cases > 0 {
                    return Err(Unparsable);
                }
                break;
            };
            let next = self.peek_at(1);
            match c {
                '\n' => {
                    self.at += 1;
                    build.end(false);
                    self.read_here_documents()?;
                }
                ';' => {
                    self.at += 1;
                    build.end(false);
                    let mut next_case = false;
                    while matches!(self.peek(), Some(';' | '&')) {
                        self.at += 1;
                        next_case = true;
                    }
                    if next_case && build.cases > 0 {
                        self.case_pattern(&mut build)?;
                    }
                }
                '&' if next == Some('>') => {
                    self.at += 1;
                    self.redirection(&mut build)?;
                }
                '&' | '|' => {
                    self.at += if next == Some(c) || (c == '|' && next == Some('&')) { 2 } else { 1 };
                    build.end(c == '|' && next != Some('|'));
                }
                '(' => self.open_paren(&mut build)?,
                ')' if build.parens > 0 => {
                    self.at += 1;
                    build.parens -= 1;
                    build.cross();
                }
                ')' if end == End::Paren && build.cases == 0 => {
                    self.at += 1;
                    break;
                }
                ')' => return Err(Unparsable),
                '<' | '>' if next != Some('(') => self.redirection(&mut build)?,
                _ => self.command_word(&mut build)?,
            }
        }
        build.end(false);
        Ok(build.script)
    }

    /// Spaces, tabs, continued lines and a comment.
    fn blanks(&mut self) {
        loop {
            match self.peek() {
                Some(' ' | '\t' | '\r') => self.at += 1,
                Some('\\') if self.peek_at(1) == Some('\n') => self.at += 2,
                Some('#') => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    fn blank_lines(&mut self) -> Parsed<()> {
        self.blanks();
        while self.peek() == Some('\n') {
            self.at += 1;
            self.read_here_documents()?;
            self.blanks();
        }
        Ok(())
    }

    fn open_paren(&mut self, build: &mut Builder) -> Parsed<()> {
        if build.at_start() {
            if self.peek_at(1) == Some('(')
                && let Some(inside) = self.arithmetic()?
            {
                build.current.others.push(Word { symbols: vec![inside], quoted: true });
                return Ok(());
            }
            self.at += 1;
            build.parens += 1;
            build.cross();
            return if build.parens > MAX_PARENS { Err(Unparsable) } else { Ok(()) };
        }
        // `name ()` defines a function; its body is read as commands, as if it were called.
        self.at += 1;
        self.blanks();
        if build.current.words.len() != 1 || self.peek() != Some(')') {
            return Err(Unparsable);
        }
        self.at += 1;
        build.current = Command { crossed: true, ..Command::default() };
        Ok(())
    }

    fn command_word(&mut self, build: &mut Builder) -> Parsed<()> {
        let word = self.word()?;
        let plain = word.plain();
        if matches!(self.peek(), Some('<' | '>'))
            && plain.as_ref().is_some_and(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        {
            return Ok(());
        }
        if build.at_start()
            && let Some(keyword) = &plain
            && self.keyword(keyword, build)?
        {
            return Ok(());
        }
        match word.assignment() {
            Some((name, _, value)) if value.symbols.is_empty() && self.peek() == Some('(') => {
                self.at += 1;
                let mut values = Vec::new();
                loop {
                    self.spend(1)?;
                    self.blank_lines()?;
                    match self.peek() {
                        Some(')') => break,
                        None | Some('(' | ';' | '&' | '|' | '<' | '>') => return Err(Unparsable),
                        Some(_) => values.push(self.word()?),
                    }
                }
                self.at += 1;
                build.current.assigns.push(Assign { name, kind: AssignKind::Array, values });
            }
            Some((name, kind, value)) if build.current.words.is_empty() => {
                build.current.assigns.push(Assign { name, kind, values: vec![value] });
            }
            _ => build.current.words.push(word),
        }
        Ok(())
    }

    /// Handles a reserved word where a command may start; false if the word is none.
    fn keyword(&mut self, keyword: &str, build: &mut Builder) -> Parsed<bool> {
        if std::mem::take(&mut build.after_time) && matches!(keyword, "-p" | "--") {
            build.after_time = true;
            return Ok(true);
        }
        match keyword {
            "!" => {}
            "time" => build.after_time = true,
            "if" | "then" | "elif" | "else" | "fi" | "while" | "until" | "do" | "done" | "{" | "}"
            | "coproc" => {
                build.cross();
            }
            "esac" => {
                build.cases = build.cases.checked_sub(1).ok_or(Unparsable)?;
                build.cross();
            }
            "case" => {
                build.cross();
                self.blanks();
                let subject = self.word()?;
                build.current.others.push(subject);
                self.blank_lines()?;
                if self.word()?.plain().as_deref() != Some("in") {
                    return Err(Unparsable);
                }
                build.cases += 1;
                self.case_pattern(build)?;
            }
            "function" => {
                self.blanks();
                self.word()?;
                self.blanks();
                if self.peek() == Some('(') {
                    self.at += 1;
                    self.blanks();
                    if self.peek() != Some(')') {
                        return Err(Unparsable);
                    }
                    self.at += 1;
                }
                build.cross();
            }
            "for" | "select" => self.for_header(build)?,
            "[[" => self.condition(build)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn for_header(&mut self, build: &mut Builder) -> Parsed<()> {
        build.cross();
        self.blanks();
        if self.peek() == Some('(') {
            let inside = self.arithmetic()?.ok_or(Unparsable)?;
            build.current.others.push(Word { symbols: vec![inside], quoted: true });
            return Ok(());
        }
        let name = self.word()?.plain().ok_or(Unparsable)?;
        self.blank_lines()?;
        let back = self.at;
        let mut values = Vec::new();
        if self.peek().is_some_and(|c| !is_meta(c)) && self.word()?.plain().as_deref() == Some("in") {
            self.blanks();
            while self.peek().is_some_and(|c| !is_meta(c)) {
                values.push(self.word()?);
                self.blanks();
            }
        } else {
            self.at = back;
        }
        build.current.assigns.push(Assign { name, kind: AssignKind::Each, values });
        build.cross();
        Ok(())
    }

    /// `PATTERN | PATTERN )`, or the `esac` that ends the case.
    fn case_pattern(&mut self, build: &mut Builder) -> Parsed<()> {
        build.cross();
        self.blank_lines()?;
        let mut first = true;
        if self.peek() == Some('(') {
            self.at += 1;
            first = false;
        }
        loop {
            self.spend(1)?;
            self.blanks();
            match self.peek() {
                Some(')') => break self.at += 1,
                Some('|') => self.at += 1,
                Some(c) if !is_meta(c) => {
                    let word = self.word()?;
                    if std::mem::take(&mut first) && word.plain().as_deref() == Some("esac") {
                        build.cases -= 1;
                        break;
                    }
                    build.current.others.push(word);
                }
                _ => return Err(Unparsable),
            }
        }
        build.cross();
        Ok(())
    }

    /// `[[ … ]]`, where `&&`, `||`, `<`, `(` are no separators of commands.
    fn condition(&mut self, build: &mut Builder) -> Parsed<()> {
        loop {
            self.spend(1)?;
            self.blank_lines()?;
            match self.peek() {
                None => return Err(Unparsable),
                Some(c) if is_meta(c) => self.at += 1,
                Some(_) => {
                    let word = self.word()?;
                    if word.plain().as_deref() == Some("]]") {
                        return Ok(());
                    }
                    build.current.others.push(word);
                }
            }
        }
    }

    fn redirection(&mut self, build: &mut Builder) -> Parsed<()> {
        let start = self.at;
        while matches!(self.peek(), Some('<' | '>')) && self.at < start + 3 && self.peek_at(1) != Some('(') {
            self.at += 1;
        }
        let input = self.text[start..self.at].iter().collect::<String>();
        let strip_tabs = input == "<<" && self.peek() == Some('-');
        if strip_tabs || matches!(self.peek(), Some('&' | '|')) {
            self.at += 1;
        }
        self.blanks();
        if self.peek().is_none_or(|c| is_meta(c) && !(matches!(c, '<' | '>') && self.peek_at(1) == Some('(')))
        {
            return Err(Unparsable);
        }
        let word = self.word()?;
        if input == "<<" {
            let delimiter = word.symbols.iter().map(|symbol| match symbol {
                Symbol::Char(c) | Symbol::Quoted(c) => Ok(*c),
                _ => Err(Unparsable),
            });
            let body = Rc::new(OnceCell::new());
            build.current.inputs.push(body.clone());
            let delimiter = delimiter.collect::<Parsed<String>>()?;
            self.here_documents.push(HereDocument { delimiter, strip_tabs, quoted: word.quoted, body });
        } else if input.starts_with('<') && (input == "<<<" || word.scripts().next().is_some()) {
            build.current.inputs.push(Rc::new(OnceCell::from(word)));
        } else {
            build.current.others.push(word);
        }
        Ok(())
    }

    fn read_here_documents(&mut self) -> Parsed<()> {
        for document in std::mem::take(&mut self.here_documents) {
            let mut body = Vec::new();
            while self.at < self.text.len() {
                let rest = &self.text[self.at..];
                let line = &rest[..rest.iter().position(|c| *c == '\n').unwrap_or(rest.len())];
                self.spend(line.len() + 1)?;
                self.at = (self.at + line.len() + 1).min(self.text.len());
                let tabs = line.iter().take_while(|c| document.strip_tabs && **c == '\t').count();
                if line[tabs..].iter().copied().eq(document.delimiter.chars()) {
                    break;
                }
                body.extend_from_slice(&line[tabs..]);
                body.push('\n');
            }
            let symbols = if document.quoted {
                body.into_iter().map(Symbol::Quoted).collect()
            } else {
                self.inner(body).expansions()?
            };
            // Each document is read once, so the cell is empty.
            let _ = document.body.set(Word { symbols, quoted: true });
        }
        Ok(())
    }
}

pub(super) fn is_meta(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')')
}
