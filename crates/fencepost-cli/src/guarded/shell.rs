//! A small parser of the shell's grammar, which cuts a line into simple commands. It gives up at everything that it does not know:
//! functions, arrays, backticks, the patterns of `case`, `${…}` with more than a name.

use std::ops::Range;

/// Words before a command.
const PREFIXES: [&str; 10] = ["if", "then", "elif", "else", "while", "until", "do", "!", "time", "{"];
/// Deeper substitutions are not parsed.
const MAX_DEPTH: usize = 40;

/// What a word has in it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    #[default]
    Bare,
    Quoted,
    /// A `$NAME`.
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
}

impl Word {
    fn add(&mut self, kind: Kind, text: &str) {
        self.kind = self.kind.max(kind);
        self.text.push_str(text);
    }
}

/// A simple command.
#[derive(Debug, Default)]
pub struct Command {
    pub words: Vec<Word>,
    /// Its here-documents.
    pub documents: Vec<Range<usize>>,
    /// Its output goes to a file.
    pub writes: bool,
    /// It stands in a substitution, which uses its output.
    pub is_nested: bool,
    /// It reads a pipe.
    pub is_piped: bool,
    /// A substitution stands in a redirection or in a here-document.
    is_unknown: bool,
}

impl Command {
    /// The words without prefixes.
    pub fn own(&self) -> &[Word] {
        let is_prefix = |word: &&Word| word.kind == Kind::Bare && PREFIXES.contains(&word.text.as_str());
        &self.words[self.words.iter().take_while(is_prefix).count()..]
    }

    /// The program is word 0. A word that is not there is empty.
    pub fn word(&self, place: usize) -> &str {
        self.own().get(place).map_or("", |word| &word.text)
    }

    /// Does it begin with the bare name of its program?
    pub fn is_plain(&self) -> bool {
        let first = self.own().first();
        !self.is_unknown && first.is_some_and(|word| word.kind == Kind::Bare && !word.text.contains('='))
    }
}

/// A line, as far as it is parsed.
#[derive(Debug, Default)]
pub struct Line<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    pub commands: Vec<Command>,
    pub comments: Vec<Range<usize>>,
    /// The ends and the commands of here-documents whose text comes after the end of this line.
    awaited: Vec<(Word, usize)>,
    /// The next command reads a pipe.
    piped: bool,
    /// A list of commands or a substitution reads what other commands print.
    pub is_used: bool,
}

impl<'a> Line<'a> {
    /// `None` if the line has something that this parser does not know.
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut line = Line { text, ..Line::default() };
        line.list(false)?;
        line.commands.retain(|command| !command.words.is_empty());
        (line.at == text.len() && line.awaited.is_empty()).then_some(line)
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// One character of a word.
    fn one(&mut self, word: &mut Word) -> Option<()> {
        let next = self.rest().chars().next()?;
        self.at += next.len_utf8();
        word.text.push(next);
        Some(())
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
        self.depth += 1;
        (self.depth <= MAX_DEPTH).then_some(())?;
        let mut own = self.begin(is_nested);
        loop {
            while self.skip(" ") || self.skip("\t") || self.skip("\\\n") {}
            match self.rest().chars().next() {
                None | Some(')') => break,
                Some('\n' | ';' | '&' | '|') if !self.rest().starts_with("&>") => {
                    match self.skip_while(|c| c == ';' || c == '&' || c == '|') {
                        "" => self.documents()?,
                        separator => self.piped = separator == "|" || separator == "|&",
                    }
                    own = self.begin(is_nested);
                }
                Some('(') => {
                    // Behind a word it is an array, or the definition of a function.
                    self.commands[own].own().is_empty().then_some(())?;
                    self.is_used |= std::mem::take(&mut self.piped);
                    self.substitution(is_nested)?;
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
        self.depth -= 1;
        Some(())
    }

    /// `(…)`
    fn substitution(&mut self, is_nested: bool) -> Option<()> {
        self.at += 1;
        self.list(is_nested)?;
        self.skip(")").then_some(())
    }

    fn begin(&mut self, is_nested: bool) -> usize {
        self.commands.push(Command { is_nested, ..Command::default() });
        self.commands.len() - 1
    }

    /// `2>&1`, `>file`, `<<EOF`, `<(…)`; false if there is none here.
    fn redirection(&mut self, own: usize) -> Option<bool> {
        let from = self.at;
        self.skip_while(|c| c.is_ascii_digit());
        let operator = self.skip_while(|c| "<>&".contains(c));
        if !operator.contains(['<', '>']) {
            self.at = from;
            return Some(false);
        }
        if self.rest().starts_with('(') {
            // A command reads or writes what the others print.
            self.is_used = true;
            return self.substitution(true).map(|()| true);
        }
        if operator.ends_with('&') && self.skip("-") {
            return Some(true);
        }
        let _ = self.skip("|") || (operator == "<<" && self.skip("-"));
        self.skip_while(|c| c == ' ' || c == '\t');
        let operand = self.word()?;
        if operator == "<<" {
            self.awaited.push((operand, own));
            return Some(true);
        }
        let is_copy = operator.ends_with('&') && operand.text.chars().all(|c| c.is_ascii_digit());
        self.commands[own].writes |= operator.contains('>') && !is_copy && operand.text != "/dev/null";
        self.commands[own].is_unknown |= operand.kind == Kind::Runs;
        Some(true)
    }

    /// The texts of the here-documents that were announced in the line before.
    fn documents(&mut self) -> Option<()> {
        self.skip("\n");
        for (end, command) in std::mem::take(&mut self.awaited) {
            let from = self.at;
            let mut before = self.at;
            while self.skip_while(|c| c != '\n').trim_start_matches('\t') != end.text {
                self.skip("\n").then_some(())?;
                before = self.at;
            }
            let expands = end.kind == Kind::Bare && self.text[from..before].contains(['`', '$']);
            self.commands[command].is_unknown |= expands;
            self.commands[command].documents.push(from..before);
        }
        Some(())
    }

    fn word(&mut self) -> Option<Word> {
        let mut word = Word { span: self.at..self.at, ..Word::default() };
        let mut in_quotes = false;
        while let Some(next) = self.rest().chars().next() {
            match next {
                '"' => {
                    in_quotes = !in_quotes;
                    word.add(Kind::Quoted, "");
                    self.at += 1;
                }
                // `$'it\'s'` has escapes.
                '`' | '$' if self.rest().starts_with('`') || self.rest().starts_with("$'") => return None,
                '$' => self.expansion(&mut word)?,
                '\\' => {
                    self.at += 1;
                    word.add(Kind::Quoted, "");
                    self.one(&mut word)?;
                }
                _ if in_quotes => self.one(&mut word)?,
                '\'' => {
                    self.at += 1;
                    word.add(Kind::Quoted, self.skip_while(|c| c != '\''));
                    self.skip("'").then_some(())?;
                }
                ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')' => break,
                _ => self.one(&mut word)?,
            }
        }
        word.span.end = self.at;
        (!in_quotes && !word.span.is_empty()).then_some(word)
    }

    fn expansion(&mut self, word: &mut Word) -> Option<()> {
        let from = self.at;
        self.at += 1;
        let mut kind = Kind::Expands;
        if self.rest().starts_with('(') {
            let (first, awaited) = (self.commands.len(), self.awaited.len());
            self.substitution(true)?;
            // `"$(cat <<'EOF' …)"` is text.
            let inner = self.commands[first..].iter().filter(|command| !command.words.is_empty());
            let is_cat = |cat: &Command| cat.words.len() == 1 && cat.word(0) == "cat" && !cat.is_unknown;
            let is_text =
                inner.clone().count() == 1 && inner.clone().all(is_cat) && self.awaited.len() == awaited;
            kind = if is_text { Kind::Quoted } else { Kind::Runs };
        } else if self.skip("{") {
            self.skip_while(|c| c.is_ascii_alphanumeric() || "_#@*!?[]-".contains(c));
            self.skip("}").then_some(())?;
        } else {
            self.skip_while(|c| c.is_ascii_alphanumeric() || c == '_');
        }
        word.add(kind, &self.text[from..self.at]);
        Some(())
    }
}
