//! Files of JSON, an object a line. What is wrong with one is said with the number of its line.

use fencepost::{Code, Error, Result, op};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// What was read, each with its line.
#[derive(Debug, Default)]
pub struct Lines<T> {
    pub items: Vec<T>,
    pub numbers: Vec<usize>,
}

/// Reads a file, or standard input for `-`. Empty lines are left out.
pub fn read<T: DeserializeOwned>(file: &str) -> Result<Lines<T>> {
    let lines = parse(&text(file)?)?;
    if lines.items.is_empty() { Err(empty(file)) } else { Ok(lines) }
}

/// All of a file, or of standard input for `-`.
pub fn text(file: &str) -> Result<String> {
    let text = match is_stdin(file) {
        true => std::io::read_to_string(std::io::stdin()),
        false => std::fs::read_to_string(file),
    };
    text.map_err(|e| Error::new(Code::Invalid, format!("`{file}` cannot be read: {e}")))
}

pub fn empty(file: &str) -> Error {
    Error::new(Code::Invalid, format!("there are no tasks in `{file}`"))
        .hint("each is a JSON object on a line of its own")
}

/// Whether a file's name stands for standard input: `-`, or `@-` as for a text.
pub fn is_stdin(file: &str) -> bool {
    matches!(file, "-" | "@-")
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<Lines<T>> {
    let mut lines = Lines { items: Vec::new(), numbers: Vec::new() };
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let item = op::decode(line).map_err(|error| on(error, at + 1))?;
        lines.items.push(item);
        lines.numbers.push(at + 1);
    }
    Ok(lines)
}

impl<T> Lines<T> {
    /// A refusal of one item, said of its line. `sent` tells which of ours was the call's nth.
    pub fn blame(&self, error: Error, sent: impl Fn(usize) -> usize) -> Error {
        match refused(&error, self.items.len()).and_then(|item| self.numbers.get(sent(item))) {
            Some(&line) => on(error, line),
            None => error,
        }
    }
}

/// Which of a call's items a refusal is about: `tasks[7]`, or the only one.
pub fn refused(error: &Error, of: usize) -> Option<usize> {
    let field = error.field("field").and_then(Value::as_str)?;
    match field.strip_prefix("tasks[").and_then(|rest| rest.split_once("].")) {
        Some((index, _)) => index.parse().ok(),
        None => (of == 1).then_some(0),
    }
}

/// The same error, of this line.
pub fn on(error: Error, line: usize) -> Error {
    at(error, &format!("line {line}")).with("line", line)
}

/// The same error, with the place that it is about. Its field loses the place that it had in the call.
pub fn at(error: Error, place: &str) -> Error {
    let changed = || {
        let mut body = serde_json::to_value(&error).ok()?;
        let field = body["field"].as_str().unwrap_or_default().to_owned();
        let plain = field.split_once("].").map_or(field.as_str(), |(_, name)| name).to_owned();
        let message = error.message().replace(&format!("`{field}`"), &format!("`{plain}`"));
        // The item is all that was parsed, so its first line says nothing.
        let message =
            message.replace("the request does not fit: ", "").replace(" at line 1 column", " at column");
        body["message"] = format!("{place}: {message}").into();
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
        let lines = parse::<Item>("{\"title\": \"a\"}\n\n {\"title\": \"b\"}\r\n").unwrap();
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
            let error = parse::<Item>(text).unwrap_err();
            assert!(error.message().starts_with(says), "{error}");
            assert_eq!(error.field("line").unwrap(), says.as_bytes()[5] - b'0');
        }
        let refused = |field: &str| Error::invalid(field, "is empty");
        assert_eq!(lines.blame(refused("tasks[1].title"), |i| i).message(), "line 3: `title` is empty");
        assert_eq!(lines.blame(refused("tasks[1].title"), |i| 1 - i).message(), "line 1: `title` is empty");
        assert_eq!(lines.blame(refused("tasks"), |i| i).message(), "`tasks` is empty");
    }
}
