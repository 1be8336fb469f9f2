//! Reads one shell word: quotes, escapes, parameters, substitutions, arithmetic.

use std::rc::Rc;

use super::parse::{MAX_DEPTH, Parser, Unparsable, is_meta};
use super::syntax::{Script, Symbol, Word};

type Parsed<T> = Result<T, Unparsable>;

impl Parser<'_> {
    /// Reads up to the next unquoted blank or operator.
    pub(super) fn word(&mut self) -> Parsed<Word> {
        let mut word = Word::default();
        while let Some(c) = self.peek() {
            self.spend(1)?;
            match c {
                '\\' => {
                    self.at += 2;
                    match self.text.get(self.at - 1) {
                        Some('\n') => {}
                        escaped => {
                            word.quoted = true;
                            word.symbols.push(Symbol::Quoted(escaped.copied().unwrap_or('\\')));
                        }
                    }
                }
                '\'' => {
                    self.at += 1;
                    word.quoted = true;
                    while self.peek().ok_or(Unparsable)? != '\'' {
                        self.spend(1)?;
                        word.symbols.push(Symbol::Quoted(self.text[self.at]));
                        self.at += 1;
                    }
                    self.at += 1;
                }
                '"' => {
                    word.quoted = true;
                    self.double_quotes(&mut word.symbols)?;
                }
                '$' => {
                    word.quoted |= matches!(self.peek_at(1), Some('\'' | '"'));
                    self.dollar(false, &mut word.symbols)?;
                }
                '`' => self.backticks(false, &mut word.symbols)?,
                '<' | '>' if self.peek_at(1) == Some('(') => {
                    self.at += 2;
                    let script = self.nested()?;
                    word.symbols.push(Symbol::Unknown(vec![script]));
                }
                c if is_meta(c) => break,
                c => {
                    self.at += 1;
                    word.symbols.push(Symbol::Char(c));
                }
            }
        }
        Ok(word)
    }

    fn double_quotes(&mut self, into: &mut Vec<Symbol>) -> Parsed<()> {
        self.at += 1;
        loop {
            match self.peek().ok_or(Unparsable)? {
                '"' => break self.at += 1,
                _ => self.quoted_symbol(into)?,
            }
        }
        Ok(())
    }

    /// A text in which only `\`, `$` and backticks are special: a here-document, or the inside of arithmetic.
    pub(super) fn expansions(&mut self) -> Parsed<Vec<Symbol>> {
        let mut symbols = Vec::new();
        while self.peek().is_some() {
            self.quoted_symbol(&mut symbols)?;
        }
        Ok(symbols)
    }

    fn quoted_symbol(&mut self, into: &mut Vec<Symbol>) -> Parsed<()> {
        self.spend(1)?;
        match (self.text[self.at], self.peek_at(1)) {
            ('\\', Some('\n')) => self.at += 2,
            ('\\', Some(c @ ('$' | '`' | '"' | '\\'))) => {
                self.at += 2;
                into.push(Symbol::Quoted(c));
            }
            ('$', _) => self.dollar(true, into)?,
            ('`', _) => self.backticks(true, into)?,
            (c, _) => {
                self.at += 1;
                into.push(Symbol::Quoted(c));
            }
        }
        Ok(())
    }

    fn dollar(&mut self, quoted: bool, into: &mut Vec<Symbol>) -> Parsed<()> {
        match self.peek_at(1) {
            Some('\'') if !quoted => return self.ansi_c(into),
            Some('"') if !quoted => {
                self.at += 1;
                return self.double_quotes(into);
            }
            Some('(') => {
                self.at += 1;
                if self.peek_at(1) == Some('(')
                    && let Some(inside) = self.arithmetic()?
                {
                    into.push(inside);
                    return Ok(());
                }
                self.at += 1;
                let script = self.nested()?;
                into.push(Symbol::Output { script, quoted });
            }
            Some('{') => {
                self.at += 2;
                return self.parameter(quoted, into);
            }
            Some(c) if c == '_' || c.is_ascii_alphabetic() => {
                self.at += 1;
                let name = self.name();
                into.push(Symbol::Variable { name, quoted });
            }
            // The positional and special parameters: none of them is known.
            Some(c) if c.is_ascii_digit() || "@*#?-$!".contains(c) => {
                self.at += 2;
                into.push(Symbol::Unknown(Vec::new()));
            }
            _ => {
                self.at += 1;
                into.push(Symbol::Quoted('$'));
            }
        }
        Ok(())
    }

    fn name(&mut self) -> String {
        let start = self.at;
        while self.peek().is_some_and(|c| c == '_' || c.is_ascii_alphanumeric()) {
            self.at += 1;
        }
        self.text[start..self.at].iter().collect()
    }

    /// The rest of `${…}`. Only `${name}` and `${name[@]}` can be known; defaults, cuts and the like are unknown.
    fn parameter(&mut self, quoted: bool, into: &mut Vec<Symbol>) -> Parsed<()> {
        if self.depth_exceeded() {
            return Err(Unparsable);
        }
        let name = self.name();
        let all = matches!(self.text.get(self.at..self.at + 3), Some(['[', '@' | '*', ']']));
        let end = self.at + if all { 3 } else { 0 };
        if !name.is_empty() && self.text.get(end) == Some(&'}') {
            self.at = end + 1;
            into.push(Symbol::Variable { name, quoted: quoted && !all });
            return Ok(());
        }
        let mut inside = Word::default();
        loop {
            self.spend(1)?;
            match self.peek().ok_or(Unparsable)? {
                '}' => break self.at += 1,
                '\\' => self.at += 2,
                '\'' if !quoted => {
                    self.at += 1;
                    while self.peek().ok_or(Unparsable)? != '\'' {
                        self.at += 1;
                    }
                    self.at += 1;
                }
                '"' => self.double_quotes(&mut inside.symbols)?,
                '$' => self.deeper(|parser| parser.dollar(quoted, &mut inside.symbols))?,
                '`' => self.backticks(quoted, &mut inside.symbols)?,
                _ => self.at += 1,
            }
        }
        into.push(Symbol::Unknown(inside.scripts().cloned().collect()));
        Ok(())
    }

    fn backticks(&mut self, quoted: bool, into: &mut Vec<Symbol>) -> Parsed<()> {
        self.at += 1;
        let mut text = Vec::new();
        loop {
            self.spend(1)?;
            match (self.peek().ok_or(Unparsable)?, self.peek_at(1)) {
                ('`', _) => break self.at += 1,
                ('\\', Some(c)) if matches!(c, '$' | '`' | '\\') || (quoted && c == '"') => {
                    self.at += 2;
                    text.push(c);
                }
                (c, _) => {
                    self.at += 1;
                    text.push(c);
                }
            }
        }
        let script: Rc<Script> = Rc::new(self.inner(text).whole()?);
        into.push(Symbol::Output { script, quoted });
        Ok(())
    }

    /// `((…))` from its first parenthesis; `None`, and nothing read, if the brackets close as nested subshells do.
    pub(super) fn arithmetic(&mut self) -> Parsed<Option<Symbol>> {
        let start = self.at + 2;
        let (mut end, mut open) = (start, 2);
        while open > 1 {
            self.spend(1)?;
            match self.text.get(end).ok_or(Unparsable)? {
                '(' => open += 1,
                ')' => open -= 1,
                _ => {}
            }
            end += 1;
        }
        if self.text.get(end) != Some(&')') {
            return Ok(None);
        }
        if self.depth_exceeded() {
            return Err(Unparsable);
        }
        let inside =
            Word { symbols: self.inner(self.text[start..end - 1].to_vec()).expansions()?, quoted: true };
        self.at = end + 1;
        Ok(Some(Symbol::Unknown(inside.scripts().cloned().collect())))
    }

    /// `$'…'` with the escapes of C.
    fn ansi_c(&mut self, into: &mut Vec<Symbol>) -> Parsed<()> {
        self.at += 2;
        loop {
            self.spend(1)?;
            let c = self.peek().ok_or(Unparsable)?;
            self.at += 1;
            let c = match c {
                '\'' => return Ok(()),
                '\\' => {
                    let escaped = self.peek().ok_or(Unparsable)?;
                    self.at += 1;
                    match escaped {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        'a' | 'b' | 'e' | 'E' | 'f' | 'v' => '\u{1b}',
                        'x' => self.code(16, 2),
                        'u' => self.code(16, 4),
                        'U' => self.code(16, 8),
                        'c' => {
                            self.at += 1;
                            '\u{1b}'
                        }
                        '0'..='7' => {
                            self.at -= 1;
                            self.code(8, 3)
                        }
                        other => other,
                    }
                }
                c => c,
            };
            into.push(Symbol::Quoted(c));
        }
    }

    fn code(&mut self, radix: u32, digits: usize) -> char {
        let mut value = 0u32;
        for _ in 0..digits {
            let Some(digit) = self.peek().and_then(|c| c.to_digit(radix)) else { break };
            value = value.wrapping_mul(radix).wrapping_add(digit);
            self.at += 1;
        }
        char::from_u32(if radix == 8 { value & 0xff } else { value }).unwrap_or('\u{fffd}')
    }

    fn depth_exceeded(&self) -> bool {
        self.depth() > MAX_DEPTH
    }
}
