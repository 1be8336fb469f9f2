//! Files of JSON with one object per line. Errors name the line.

use crate::limits::{LIMITS, Limits, TooLarge};
use fencepost::{Code, Error, Result, op};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The items of a file, each with the number of its line.
#[derive(Debug, Default)]
pub struct Lines<T> {
    pub items: Vec<T>,
    pub numbers: Vec<usize>,
}

/// Parses the text of `file`, which only errors name. Empty lines are skipped.
pub fn parse_file<T: DeserializeOwned>(file: &str, text: &str) -> Result<Lines<T>> {
    let lines = parse(file, text)?;
    if lines.items.is_empty() { Err(no_tasks(file)) } else { Ok(lines) }
}

pub(crate) fn no_tasks(file: &str) -> Error {
    Error::new(Code::Invalid, format!("there are no tasks in `{file}`"))
        .hint("each task is a JSON object on its own line")
}

fn parse<T: DeserializeOwned>(file: &str, text: &str) -> Result<Lines<T>> {
    let mut lines = Lines { items: Vec::new(), numbers: Vec::new() };
    for line in numbered(file, text, LIMITS) {
        let (number, line) = line?;
        let item = op::decode(line).map_err(|error| on_line(error, number))?;
        lines.items.push(item);
        lines.numbers.push(number);
    }
    Ok(lines)
}

/// The lines that are not empty, with their numbers. The text of `file` as a whole was limited when it was read.
pub(crate) fn numbered<'t>(
    file: &'t str,
    text: &'t str,
    limits: Limits,
) -> impl Iterator<Item = Result<(usize, &'t str)>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.enumerate().map(move |(rows, (at, line))| match line.len() {
        _ if rows >= limits.rows => Err(TooLarge::Rows(limits.rows).of(file)),
        bytes if bytes > limits.value => Err(on_line(TooLarge::Value(limits.value).of(file), at + 1)),
        _ => Ok((at + 1, line)),
    })
}

impl<T> Lines<T> {
    /// The refusal of a call that sent these items: if it is about one of them, it names the line.
    pub fn locate(&self, error: Error) -> Error {
        match refused_item(&error, self.items.len()) {
            Some(item) => self.locate_item(error, item),
            None => error,
        }
    }

    /// The refusal of one of these items, with its line.
    pub fn locate_item(&self, error: Error, item: usize) -> Error {
        match self.numbers.get(item) {
            Some(&line) => on_line(error, line),
            None => error,
        }
    }
}

/// Which item of a call a refusal is about: the index in `tasks[7]`, or the only item.
pub(crate) fn refused_item(error: &Error, items: usize) -> Option<usize> {
    let field = error.field("field").and_then(Value::as_str)?;
    match field.strip_prefix("tasks[").and_then(|rest| rest.split_once("].")) {
        Some((index, _)) => index.parse().ok(),
        None => (items == 1).then_some(0),
    }
}

/// The same error, with the number of the line that it is about.
pub fn on_line(error: Error, line: usize) -> Error {
    prefixed(error, &format!("line {line}")).with("line", line)
}

/// The same error, with the source of the item before its message. Its field loses the index that the item had in the call.
pub(crate) fn prefixed(error: Error, prefix: &str) -> Error {
    let changed = || {
        let mut body = serde_json::to_value(&error).ok()?;
        let field = body["field"].as_str().unwrap_or_default().to_owned();
        let plain = field.split_once("].").map_or(field.as_str(), |(_, name)| name).to_owned();
        let message = error.message().replace(&format!("`{field}`"), &format!("`{plain}`"));
        // The parser saw only this item, so its "line 1" means nothing to the reader.
        let message =
            message.replace("the request does not fit: ", "").replace(" at line 1 column", " at column");
        body["message"] = format!("{prefix}: {message}").into();
        if !field.is_empty() {
            body["field"] = plain.into();
        }
        serde_json::from_value(body).ok()
    };
    changed().unwrap_or(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencepost::task::plan::Item;

    #[test]
    fn errors_name_the_line() {
        let parse = |text: &str| parse::<Item>("plan.jsonl", text);
        let lines = parse("{\"title\": \"a\"}\n\n {\"title\": \"b\"}\r\n").unwrap();
        assert_eq!(lines.numbers, [1, 3]);
        for (text, says) in [
            (
                "{\"title\": \"a\"}\n\n{\"titel\": \"b\"}",
                "line 3: `titel`: unknown field `titel`, expected one of",
            ),
            ("{\"title\": 7}", "line 1: `title`: invalid type: integer `7`, expected a string at column 11"),
            ("{}\n", "line 1: missing field `title` at column 2"),
            ("\n[1]", "line 2: it is not a JSON object"),
            ("{\"title\": \"a\"} x", "line 1: trailing characters at column 16"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.message().starts_with(says), "{error}");
            assert_eq!(error.field("line").unwrap(), says.as_bytes()[5] - b'0');
        }
        let refused = |field: &str| Error::invalid(field, "is empty");
        assert_eq!(lines.locate(refused("tasks[1].title")).message(), "line 3: `title` is empty");
        assert_eq!(lines.locate_item(refused("tasks[1].title"), 0).message(), "line 1: `title` is empty");
        assert_eq!(lines.locate(refused("tasks")).message(), "`tasks` is empty");
    }

    #[test]
    fn lines_are_limited() {
        let read = |text: &'static str| {
            let limits = Limits { rows: 2, value: 3, total: 0, ..LIMITS };
            let lines = numbered("all.jsonl", text, limits).collect::<Result<Vec<_>>>();
            lines.map_err(|e| (e.code(), e.message().to_owned()))
        };
        assert_eq!(read("abc\n\nb\n").unwrap(), [(1, "abc"), (3, "b")]);
        for (text, says) in [
            ("a\n\nb\nc", "`all.jsonl` is too large for an import: it has more than 2 rows"),
            (
                "a\nabcd",
                "line 2: `all.jsonl` is too large for an import: it has a value or a row with more than 3 bytes",
            ),
        ] {
            assert_eq!(read(text), Err((Code::TooLarge, says.into())));
        }
    }
}
