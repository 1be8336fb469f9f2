//! Untrusted text, made safe to show.
//!
//! A task's title, a reason, a file's name or a server's error may contain anything: sequences that move the cursor or set the
//! window's title, characters that reverse the reading direction or are invisible, and lines that look like ours. Such
//! characters are shown as escapes (`\u{1b}`). A line end becomes [`BREAK`], after which the writer (`streams.rs`) indents: only
//! this program begins a line at the margin.

pub use fencepost::hidden::is_hidden;
use std::borrow::Cow;

/// Stands for a line end in untrusted text. Unicode reserves this character for a program's internal use. In the untrusted text
/// itself it is shown as an escape.
pub const BREAK: char = '\u{fdd0}';
/// Stands for the ESC with which a colour of our own begins.
pub const STYLE: char = '\u{fdd1}';

/// The text with hidden characters as escapes and line ends as [`BREAK`]. Tabs stay.
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| is_hidden(c) && c != '\t') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.replace("\r\n", "\n").chars() {
        match c {
            '\n' => out.push(BREAK),
            '\t' => out.push(c),
            c if is_hidden(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// The text in one line, with line ends as escapes, too.
pub fn in_a_line(text: &str) -> String {
    shown(text).replace(BREAK, "\\n")
}

/// JSON in which every text, names of fields included, is as [`shown`] makes it. All else stays as it was written.
pub fn shown_in_json(json: &str) -> Cow<'_, str> {
    if !json.contains('\\') && !json.chars().any(is_hidden) {
        return Cow::Borrowed(json);
    }
    let (mut out, mut rest, mut changed) = (String::with_capacity(json.len()), json, false);
    while let Some(at) = rest.find('"') {
        let (before, text) = rest.split_at(at);
        let (literal, after) = text.split_at(literal_length(text));
        out.push_str(before);
        match serde_json::from_str::<String>(literal).as_deref().map(shown) {
            Ok(Cow::Owned(safe)) => {
                changed = true;
                out.push_str(&serde_json::Value::String(safe).to_string());
            }
            // Half of a surrogate pair is no text. It can only be an escape already.
            Ok(Cow::Borrowed(_)) | Err(_) => out.push_str(literal),
        }
        rest = after;
    }
    out.push_str(rest);
    if changed { Cow::Owned(out) } else { Cow::Borrowed(json) }
}

/// The length of the text with which this JSON begins, both quotes included.
fn literal_length(json: &str) -> usize {
    let mut escaped = false;
    let end = json.bytes().skip(1).position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    });
    end.map_or(json.len(), |at| at + 2)
}

/// The same JSON, with hidden characters written as `\u` escapes. For programs it means the same. (Outside of texts JSON has only
/// white space, and of that a carriage return would move the cursor.)
pub fn escaped_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            '\r' => out.push(' '),
            c if is_hidden(c) => {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_shown_as_escapes() {
        for (text, says) in [
            ("plain, 構文, é, 👍🏽, ❤\u{fe0f} and\ttabs", "plain, 構文, é, 👍🏽, ❤\u{fe0f} and\ttabs"),
            ("\x1b[2J\x07\r\x7f\u{9b}0m", "\\u{1b}[2J\\u{7}\\r\\u{7f}\\u{9b}0m"),
            ("\u{202e}x\u{2066}\u{200b}\u{feff}", "\\u{202e}x\\u{2066}\\u{200b}\\u{feff}"),
            ("\u{e0041}\u{e0100}\u{3164}\u{ad}", "\\u{e0041}\\u{e0100}\\u{3164}\\u{ad}"),
            ("a\nb\r\nc\u{2028}d", "a\u{fdd0}b\u{fdd0}c\\u{2028}d"),
            ("\u{fdd0}\u{fdd1}[31m\u{1ffff}", "\\u{fdd0}\\u{fdd1}[31m\\u{1ffff}"),
        ] {
            assert_eq!(shown(text), says, "{text:?}");
        }
    }

    #[test]
    fn texts_in_json_are_shown_and_all_else_stays() {
        for (json, says) in [
            (r#"{"a": 1.50,  "b": [true, "x\ty"]}"#, r#"{"a": 1.50,  "b": [true, "x\ty"]}"#),
            (r#"{"a": 1.50, "b": "\u001b[2J\"\\"}"#, r#"{"a": 1.50, "b": "\\u{1b}[2J\"\\"}"#),
            ("{\"\u{202e}\":\n\"\\ud83d\\ude00\\n\"}", "{\"\\\\u{202e}\":\n\"😀\u{fdd0}\"}"),
            (r#"["\ud800", "\u0007"]"#, r#"["\ud800", "\\u{7}"]"#),
        ] {
            assert_eq!(shown_in_json(json), says, "{json}");
        }
    }

    #[test]
    fn json_for_programs_means_the_same() {
        let text = "\x1b\u{9b}\u{202e}\u{e0041}😀é\n";
        let json = escaped_json(&serde_json::to_string(text).expect("JSON"));
        assert_eq!(json, r#""\u001b\u009b\u202e\udb40\udc41😀é\n""#);
        assert_eq!(serde_json::from_str::<String>(&json).expect("JSON"), text);
        assert_eq!(escaped_json("{\r\n}"), "{ \n}");
    }
}
