//! JSON with comments and trailing commas, read with the place of everything in the text.
//!
//! A scanner of our own, and not the crate `jsonc-parser`: its tree of tokens keeps the bytes of a file when it is printed, but its
//! edits choose the white space and commas around a new entry themselves, and its removal does not promise to undo them. The promise
//! that `--remove` restores the file exactly rests on these bytes, and what is left for a crate to do is this file.

use super::line_number;
use serde_json::Value;
use std::{collections::HashSet, ops::Range};

#[derive(Debug)]
pub struct Node {
    pub span: Range<usize>,
    pub kind: Kind,
}

#[derive(Debug)]
pub enum Kind {
    Scalar(Value),
    Object(Vec<Item>),
    Array(Vec<Item>),
}

/// A member of an object, or an element of an array.
#[derive(Debug)]
pub struct Item {
    /// The name of a member.
    pub key: Option<String>,
    /// Where the key begins, or the element.
    pub start: usize,
    pub node: Node,
    /// The comma after it.
    pub comma: Option<usize>,
}

impl Node {
    pub fn items(&self) -> &[Item] {
        match &self.kind {
            Kind::Object(items) | Kind::Array(items) => items,
            Kind::Scalar(_) => &[],
        }
    }

    pub fn member(&self, key: &str) -> Option<(usize, &Node)> {
        let Kind::Object(items) = &self.kind else { return None };
        let at = items.iter().position(|item| item.key.as_deref() == Some(key))?;
        Some((at, &items[at].node))
    }

    pub fn value(&self) -> Value {
        match &self.kind {
            Kind::Scalar(value) => value.clone(),
            Kind::Array(items) => items.iter().map(|item| item.node.value()).collect(),
            Kind::Object(items) => {
                let members =
                    items.iter().map(|item| (item.key.clone().unwrap_or_default(), item.node.value()));
                Value::Object(members.collect())
            }
        }
    }

    /// The kind, for a message.
    pub fn describe(&self) -> &'static str {
        match &self.kind {
            Kind::Object(_) => "an object",
            Kind::Array(_) => "a list",
            Kind::Scalar(Value::String(_)) => "a text",
            Kind::Scalar(Value::Number(_)) => "a number",
            Kind::Scalar(Value::Bool(_)) => "true or false",
            Kind::Scalar(_) => "null",
        }
    }
}

impl Item {
    pub fn end(&self) -> usize {
        self.node.span.end
    }
}

/// Deeper files are refused: each level takes some of the stack, and a cloned repository may contain anything.
const DEEPEST: usize = 100;

/// Reads the text. `None`: there is only white space.
pub fn parse(text: &str) -> Result<Option<Node>, String> {
    let mut scanner = Scanner { text, at: bom(text) };
    scanner.skip()?;
    if scanner.at == text.len() {
        return match text[bom(text)..].trim().is_empty() {
            true => Ok(None),
            false => Err("it is not JSON: there are only comments in it".into()),
        };
    }
    let root = scanner.value(0)?;
    scanner.skip()?;
    match scanner.at == text.len() {
        true => Ok(Some(root)),
        false => Err(scanner.problem("there is more after the end of the JSON value")),
    }
}

/// The length of the byte order mark.
pub fn bom(text: &str) -> usize {
    if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 }
}

/// Where the comment ends that begins here: a line comment before its line end. `#` begins a comment of TOML; in JSON the scanner
/// does not get here with it.
pub fn comment_end(text: &str, at: usize) -> Option<usize> {
    let rest = &text[at..];
    if rest.starts_with("//") || rest.starts_with('#') {
        return Some(at + rest.find(['\n', '\r']).unwrap_or(rest.len()));
    }
    let inside = rest.strip_prefix("/*")?;
    inside.find("*/").map(|end| at + end + 4)
}

pub fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl Scanner<'_> {
    fn problem(&self, what: &str) -> String {
        format!("it is not JSON: line {}: {what}", line_number(self.text, self.at.min(self.text.len())))
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    /// Skips white space and comments.
    fn skip(&mut self) -> Result<(), String> {
        loop {
            let rest = &self.text[self.at..];
            self.at += rest.len() - rest.trim_start_matches(is_space).len();
            if self.peek() != Some('/') {
                return Ok(());
            }
            self.at = comment_end(self.text, self.at).ok_or_else(|| self.problem("a comment has no end"))?;
        }
    }

    fn value(&mut self, depth: usize) -> Result<Node, String> {
        if depth > DEEPEST {
            return Err(self.problem("it is nested too deeply"));
        }
        match self.peek() {
            Some('{') => self.container(depth, '}'),
            Some('[') => self.container(depth, ']'),
            Some('"') => {
                let start = self.at;
                let text = self.string()?;
                Ok(Node { span: start..self.at, kind: Kind::Scalar(Value::String(text)) })
            }
            Some(_) => self.word(),
            None => Err(self.problem("a value is missing")),
        }
    }

    /// A number, true, false or null.
    fn word(&mut self) -> Result<Node, String> {
        let rest = &self.text[self.at..];
        let ends = |c: char| is_space(c) || matches!(c, ',' | ':' | '{' | '}' | '[' | ']' | '"' | '/');
        let word = &rest[..rest.find(ends).unwrap_or(rest.len())];
        let value = serde_json::from_str(word).map_err(|_| match word {
            "" => self.problem("a value is missing"),
            word => self.problem(&format!("`{}` is not a value", word.chars().take(40).collect::<String>())),
        })?;
        let start = self.at;
        self.at += word.len();
        Ok(Node { span: start..self.at, kind: Kind::Scalar(value) })
    }

    fn string(&mut self) -> Result<String, String> {
        let rest = &self.text[self.at..];
        let mut escaped = false;
        let end = rest.bytes().skip(1).position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        let end = end.ok_or_else(|| self.problem("a text has no end"))? + 2;
        let text = serde_json::from_str(&rest[..end]).map_err(|_| self.problem("a text is malformed"))?;
        self.at += end;
        Ok(text)
    }

    fn container(&mut self, depth: usize, close: char) -> Result<Node, String> {
        let start = self.at;
        self.at += 1;
        let mut items: Vec<Item> = Vec::new();
        let mut keys = HashSet::new();
        loop {
            self.skip()?;
            if self.peek() == Some(close) {
                self.at += 1;
                let kind = if close == '}' { Kind::Object(items) } else { Kind::Array(items) };
                return Ok(Node { span: start..self.at, kind });
            }
            if items.last().is_some_and(|item| item.comma.is_none()) {
                return Err(self.problem(&format!("a comma or `{close}` is missing")));
            }
            let begin = self.at;
            let key = match close {
                '}' => Some(self.key(&mut keys)?),
                _ => None,
            };
            let node = self.value(depth + 1)?;
            self.skip()?;
            let comma = (self.peek() == Some(',')).then_some(self.at);
            self.at += usize::from(comma.is_some());
            items.push(Item { key, start: begin, node, comma });
        }
    }

    fn key(&mut self, before: &mut HashSet<String>) -> Result<String, String> {
        if self.peek() != Some('"') {
            return Err(self.problem("a key in double quotes is missing"));
        }
        let key = self.string()?;
        // Which of two the client would take is its secret.
        if !before.insert(key.clone()) {
            let line = line_number(self.text, self.at);
            return Err(format!("line {line}: the key `{key}` is there twice"));
        }
        self.skip()?;
        if self.peek() != Some(':') {
            return Err(self.problem("a colon is missing"));
        }
        self.at += 1;
        self.skip()?;
        Ok(key)
    }
}
