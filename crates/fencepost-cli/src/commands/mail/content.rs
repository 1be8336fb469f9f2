//! Payloads and outputs: text of people and commands as JSON, and back.

use crate::output::text;
use fencepost::{Json, Result};
use serde_json::value::RawValue;

/// A payload: an object or an array is JSON, everything else is text. (A number or a word that happens to be JSON is a text.)
pub fn payload(text: &str) -> Result<Json> {
    match serde_json::from_str::<&RawValue>(text.trim()) {
        Ok(json) if text.trim_start().starts_with(['{', '[']) => Json::of(json),
        _ => Json::of(text),
    }
}

/// The output of a command: JSON if it is valid, else text. (Invalid JSON is a text: the work is done, and its output must not be
/// refused.)
pub fn output(text: &str) -> Result<Json> {
    Json::parse(text.trim()).or_else(|_| Json::of(text))
}

/// A payload for a program: a text as it is, anything else as JSON in one line.
pub fn read(payload: &Json) -> String {
    payload.read::<String>().unwrap_or_else(|_| in_a_line(payload.text()) + "\n")
}

/// A payload for a person; it was made safe to show before.
pub fn shown(payload: &Json) -> String {
    payload.read().unwrap_or_else(|_| text::json(&in_a_line(payload.text())))
}

/// JSON in one line. In its texts line ends are escapes, so the real ones are only white space.
pub fn in_a_line(json: &str) -> String {
    json.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_json_and_text_is_text() {
        for (text, payload_is, output_is) in [
            ("hello", r#""hello""#, r#""hello""#),
            ("42", r#""42""#, "42"),
            ("null", r#""null""#, "null"),
            (" {\"a\": 1.50}\n", r#"{"a": 1.50}"#, r#"{"a": 1.50}"#),
            ("[1]", "[1]", "[1]"),
            ("{not json", r#""{not json""#, r#""{not json""#),
            ("{} {}", r#""{} {}""#, r#""{} {}""#),
            ("a\n", r#""a\n""#, r#""a\n""#),
            ("", r#""""#, r#""""#),
            ("[1e999]", "[1e999]", r#""[1e999]""#),
        ] {
            assert_eq!(payload(text).unwrap().text(), payload_is, "{text}");
            assert_eq!(output(text).unwrap().text(), output_is, "{text}");
        }
    }

    #[test]
    fn a_program_reads_what_was_pushed() {
        for (pushed, reads) in
            [("a\nb", "a\nb"), ("{\"a\":\n \"b\\nc\"}", "{\"a\":  \"b\\nc\"}\n"), ("[]", "[]\n"), ("", "")]
        {
            assert_eq!(read(&payload(pushed).unwrap()), reads);
        }
    }
}
