//! A small parser of the shell's grammar, which cuts a line into simple commands. It gives up at everything that it does not know:
//! functions, arrays, subshells, backticks, the patterns of `case`, `${…}` with more than a name.

use std::ops::Range;

/// Words before a command.
const PREFIXES: [&str; 10] = ["if", "then", "elif", "else", "while", "until", "do", "!", "time", "{"];
/// The most characters and substitutions of a line.
pub const MAX: (usize, usize) = (256 * 1024, 40);

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    #[default]
    Bare,
    Quoted,
    Expands,
    /// A substitution, whose commands are not its text.
    Runs,
}

#[derive(Debug, Default)]
pub struct Word {
    /// Without quotes; `$NAME` as it stands.
    pub text: String,
    pub span: Range<usize>,
    pub kind: Kind,
    /// It has an unquoted `*`, `?`, `[` or `{`.
    pub is_pattern: bool,
    /// It has an unquoted expansion, which may become several words.
    pub is_split: bool,
}

impl Word {
    /// Does it stay the same word when the shell expands it?
    pub fn is_literal(&self) -> bool {
        self.kind <= Kind::Quoted && !self.is_pattern
    }

    fn is_assignment(&self) -> bool {
        let name = self.text.split_once('=').map_or("", |(name, _)| name.trim_end_matches('+'));
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    fn add(&mut self, kind: Kind, text: &str) {
        self.kind = self.kind.max(kind);
        self.text.push_str(text);
    }
}

#[derive(Debug, Default)]
pub struct Command {
    pub words: Vec<Word>,
    pub documents: Vec<Range<usize>>,
    /// It stands in a substitution, which uses its output.
    pub is_nested: bool,
    pub is_piped: bool,
}

impl Command {
    /// The words without prefixes and assignments.
    pub fn own(&self) -> &[Word] {
        let is_prefix = |word: &&Word| word.is_assignment() || PREFIXES.contains(&word.text.as_str());
        &self.words[self.words.iter().take_while(is_prefix).count()..]
    }

    /// The program is word 0. A word that is not there is empty.
    pub fn word(&self, place: usize) -> &str {
        self.own().get(place).map_or("", |word| &word.text)
    }

    /// Does it begin with the bare name of its program, without assignments?
    pub fn is_plain(&self) -> bool {
        let is_set = self.words[..self.words.len() - self.own().len()].iter().any(Word::is_assignment);
        !is_set && self.own().first().is_some_and(|word| word.kind == Kind::Bare)
    }
}

#[derive(Debug, Default)]
pub struct Line<'a> {
    pub text: &'a str,
    at: usize,
    pub commands: Vec<Command>,
    pub comments: Vec<Range<usize>>,
    /// Files that redirections write.
    pub written: Vec<Word>,
    /// Here-documents whose text comes after the end of this line: the end, and the command.
    awaited: Vec<(Word, usize)>,
    piped: bool,
}

impl<'a> Line<'a> {
    /// `None` if the line has something that this parser does not know.
    pub fn parse(text: &'a str) -> Option<Self> {
        (text.len() <= MAX.0 && text.matches("$(").count() <= MAX.1).then_some(())?;
        let mut line = Line { text, ..Line::default() };
        line.list(false)?;
        line.commands.retain(|command| !command.words.is_empty());
        (line.at == text.len() && line.awaited.is_empty()).then_some(line)
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip(&mut self, text: &str) -> bool {
        let is_there = self.rest().starts_with(text);
        self.at += if is_there { text.len() } else { 0 };
        is_there
    }

    fn skip_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let length = rest.find(|c| !wanted(c)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    /// Commands, up to the end or a closing parenthesis, which stays.
    fn list(&mut self, is_nested: bool) -> Option<()> {
        let mut own = self.begin(is_nested);
        loop {
            while self.skip(" ") || self.skip("\t") || self.skip("\\\n") {}
            match self.rest().chars().next() {
                None | Some(')') => break,
                // `&>` is `&` and `>` in some shells.
                Some('\n' | ';' | '&' | '|') => {
                    match self.skip_while(|c| c == ';' || c == '&' || c == '|') {
                        "" => self.documents()?,
                        separator => self.piped = separator == "|" || separator == "|&",
                    }
                    (!self.rest().starts_with("\\\n")).then_some(())?;
                    own = self.begin(is_nested);
                }
                Some('#') => {
                    let from = self.at;
                    self.skip_while(|c| c != '\n');
                    self.comments.push(from..self.at);
                }
                Some(_) if self.redirection(own)? => {}
                Some(_) => {
                    let piped = std::mem::take(&mut self.piped);
                    let word = self.word()?;
                    self.commands[own].is_piped |= piped;
                    self.commands[own].words.push(word);
                }
            }
        }
        Some(())
    }

    fn begin(&mut self, is_nested: bool) -> usize {
        self.commands.push(Command { is_nested, ..Command::default() });
        self.commands.len() - 1
    }

    /// `2>&1`, `>file`, `<<EOF`; false if there is none here.
    fn redirection(&mut self, own: usize) -> Option<bool> {
        let from = self.at;
        self.skip_while(|c| c.is_ascii_digit());
        let operator = self.skip_while(|c| "<>&".contains(c));
        if !operator.starts_with(['<', '>']) {
            self.at = from;
            return Some(false);
        }
        self.skip("|");
        self.skip_while(|c| c == ' ' || c == '\t');
        let operand = self.word().filter(|word| word.kind < Kind::Runs)?;
        let is_copy = operator.ends_with('&') && operand.text.chars().all(|c| c.is_ascii_digit());
        if operator == "<<" {
            (operand.kind <= Kind::Quoted && !operand.text.starts_with('-')).then_some(())?;
            self.awaited.push((operand, own));
        } else if operator.contains('>') && !is_copy && operand.text != "/dev/null" {
            self.written.push(operand);
        }
        Some(true)
    }

    /// The texts of the here-documents that were announced in the line before.
    fn documents(&mut self) -> Option<()> {
        self.skip("\n");
        for (end, command) in std::mem::take(&mut self.awaited) {
            // In `$(…)` the line `EOF)` is an end, too.
            let is_text = |line: &&str| !line.trim_start().starts_with(&end.text);
            let length: usize = self.rest().split_inclusive('\n').take_while(is_text).map(str::len).sum();
            let (from, before) = (self.at, self.at + length);
            self.at = before;
            (self.skip_while(|c| c != '\n') == end.text).then_some(())?;
            let expands = self.text[from..before].contains(['`', '$', '\\']);
            (end.kind == Kind::Quoted || !expands).then_some(())?;
            self.commands[command].documents.push(from..before);
        }
        Some(())
    }

    fn word(&mut self) -> Option<Word> {
        let mut word = Word { span: self.at..self.at, ..Word::default() };
        let mut in_quotes = false;
        while let Some(next) = self.rest().chars().next() {
            // `$'it\'s'` has escapes, `$[…]` computes, and `$\⏎(` is one token.
            let is_unknown = ["`", "$'", "$[", "\\\n"].iter().any(|text| self.rest().starts_with(text));
            (!is_unknown).then_some(())?;
            match next {
                '"' => {
                    in_quotes = !in_quotes;
                    word.add(Kind::Quoted, "");
                    self.at += 1;
                }
                '$' => self.expansion(&mut word, in_quotes)?,
                '\'' if !in_quotes => {
                    self.at += 1;
                    word.add(Kind::Quoted, self.skip_while(|c| c != '\''));
                    self.skip("'").then_some(())?;
                }
                ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | ')' if !in_quotes => break,
                '(' if !in_quotes => return None,
                _ => {
                    // In quotes it is itself before other characters.
                    let after = self.rest().strip_prefix('\\');
                    if after.is_some_and(|after| !in_quotes || after.starts_with(['$', '`', '"', '\\'])) {
                        self.at += 1;
                        word.add(Kind::Quoted, "");
                    } else {
                        word.is_pattern |= !in_quotes && "*?[{".contains(next);
                    }
                    let next = self.rest().chars().next()?;
                    self.at += next.len_utf8();
                    word.text.push(next);
                }
            }
        }
        word.span.end = self.at;
        // `a[1<<2]=x` is one word.
        let is_cut = word.text.trim_start_matches('[').contains('[') && !word.text.contains(']');
        (!in_quotes && !word.span.is_empty() && !is_cut).then_some(word)
    }

    fn expansion(&mut self, word: &mut Word, in_quotes: bool) -> Option<()> {
        let from = self.at;
        self.at += 1;
        if self.skip("(") {
            // A here-document that was announced before could begin in it.
            let (first, is_early) = (self.commands.len(), !self.awaited.is_empty());
            self.list(true)?;
            (self.skip(")") && !is_early && self.awaited.is_empty()).then_some(())?;
            // `"$(cat <<'EOF' …)"` is text.
            let mut inner = self.commands[first..].iter().filter(|command| !command.words.is_empty());
            let is_alone = self.text[from..].lines().next()?.matches(['<', '>']).count() == 2;
            let is_cat =
                |cat: &&Command| is_alone && cat.word(0) == "cat" && cat.words.len() == cat.documents.len();
            if let (true, Some(cat), None) = (in_quotes, inner.next().filter(is_cat), inner.next()) {
                word.add(Kind::Quoted, self.text[cat.documents[0].clone()].trim_end_matches('\n'));
                return Some(());
            }
            word.add(Kind::Runs, "");
        } else {
            let in_braces = self.skip("{");
            self.skip_while(|c| c.is_ascii_alphanumeric() || c == '_');
            (!in_braces || self.skip("}")).then_some(())?;
        }
        word.is_split |= !in_quotes;
        word.add(Kind::Expands, &self.text[from..self.at]);
        Some(())
    }
}
