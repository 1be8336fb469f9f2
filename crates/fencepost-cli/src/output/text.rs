//! Texts laid out: wrapped, cut, or as lines of their own.

use super::{
    streams::{self, QUOTE},
    untrusted::{self, BREAK},
};
use fencepost::agent::PauseState;
use std::path::Path;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// [`BREAK`] as a text.
const BREAK_TEXT: &str = "\u{fdd0}";

/// Wraps a text: see [`Terminal::wrap`](super::Terminal::wrap).
pub fn wrapped(text: &str, limit: usize, used: usize, indent: usize) -> String {
    // The marks become what the writer makes of them, so that columns can be counted.
    let text = text.replace(BREAK, &format!("\n{QUOTE}"));
    let mut out = String::new();
    let mut at = used;
    for (n, line) in text.split('\n').enumerate() {
        let words = line.trim_start_matches(' ');
        let own = line.len() - words.len();
        let indent = if n == 0 { indent } else { own };
        if n > 0 {
            out.push('\n');
            at = 0;
        }
        out.extend(std::iter::repeat_n(' ', own));
        at += own;
        for (n, word) in words.split(' ').enumerate() {
            let width = streams::width_of(word);
            // A first word that does not fit on the used line goes to the next line, if that has more room.
            let pushed = n == 0 && at > indent && at + width > limit;
            if pushed || (n > 0 && at + 1 + width > limit) {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent));
                at = indent;
            } else if n > 0 {
                out.push(' ');
                at += 1;
            }
            out.push_str(word);
            at += width;
        }
    }
    out
}

/// The text in one line: several lines would break the text around it.
pub fn line(text: &str) -> String {
    lines(text).replace([BREAK, '\t'], " ")
}

/// An untrusted text with its line ends as [`BREAK`]; it may be safe already.
fn lines(text: &str) -> String {
    text.split(BREAK).map(untrusted::shown).collect::<Vec<_>>().join(BREAK_TEXT)
}

/// `paused until 2026-11-17T14:00:00Z: usage limit`, with the reason as it is.
pub fn paused(pause: &PauseState) -> String {
    let until = pause.until.map_or(String::new(), |until| format!(" until {until}"));
    let reason = pause.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
    format!("paused{until}{reason}")
}

/// JSON that was made safe to show. Line ends within its texts become escapes again.
pub fn json(json: &impl ToString) -> String {
    json.to_string().replace(BREAK, "\\n")
}

/// An untrusted text as indented lines: only this program begins a line at the margin.
pub fn quoted(text: &str) -> String {
    let line = |line: &str| if line.is_empty() { String::new() } else { format!("{QUOTE}{line}") };
    lines(text.trim_end_matches(|c: char| c.is_whitespace() || c == BREAK))
        .split(BREAK)
        .map(line)
        .collect::<Vec<_>>()
        .join("\n")
}

/// An untrusted text behind a label: it begins on the label's line, and the following lines are indented.
pub fn labelled(text: &str) -> String {
    let text = quoted(text);
    text.strip_prefix(QUOTE).unwrap_or(&text).to_owned()
}

/// The part of the text that fits, with `…` for the rest.
pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    if width == 0 {
        return String::new();
    }
    let mut short = String::new();
    let mut used = 1;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > width {
            break;
        }
        short.push(c);
    }
    short + "…"
}

/// A path as one word of a shell command.
pub fn shell_quoted(path: &Path) -> String {
    let path = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if path.chars().all(plain) { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// A text that a fleet accepts: cut to a length, without zeros, which a text in PostgreSQL cannot contain.
pub fn fit(text: &str, most: usize) -> String {
    let end = text.floor_char_boundary(most);
    let dots = if end < text.len() { "…" } else { "" };
    format!("{}{dots}", &text[..end]).replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_text_never_begins_at_the_margin() {
        assert_eq!(quoted("a\nclaim: b\r\n\n\tc\n"), "    a\n    claim: b\n\n    \tc");
        assert_eq!(quoted("a\u{fdd0}\x1bb\u{fdd0}"), "    a\n    \\u{1b}b");
        assert_eq!(labelled("a\nclaim: b"), "a\n    claim: b");
        assert_eq!(labelled("\nclaim: b"), "\n    claim: b");
        assert_eq!(quoted(""), "");
    }

    #[test]
    fn texts_are_cut_to_what_a_fleet_accepts() {
        assert_eq!((fit("ab", 2), fit("abc", 2), fit("aéb", 2)), ("ab".into(), "ab…".into(), "a…".into()));
        assert_eq!(fit("a\0b", 9), "a\u{fffd}b");
    }
}
