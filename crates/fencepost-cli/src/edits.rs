//! Edits of other programs' settings files: entries of ours go in, and come out again, and every other byte stays.
//!
//! All functions are pure: text in, text out. No record of an edit is kept. A file that was committed and cloned, or that others
//! changed meanwhile, is undone by the same rules: entries are recognised by their value or by a text in them, and the white
//! space around them tells whether we made the container that they are in.
//!
//! A text is `None` if there is no file. Problems are texts that continue "`FILE`: …".

mod block;
mod json;
mod jsonc;
mod toml;

pub use self::{
    block::Block,
    json::{Json, Ours},
    toml::Toml,
};

/// The line end of the text: the one that comes first.
fn newline(text: &str) -> &'static str {
    match text.find('\n') {
        Some(at) if text[..at].ends_with('\r') => "\r\n",
        _ => "\n",
    }
}

/// The number of the line in which this position is.
fn line_number(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Puts lines at the end of the text. The white space around them tells [`cut`] what was there before:
///
/// - no file: the lines, with a line end
/// - an empty file, or a last line without its end: a line end if there is text, and the lines without one
/// - else a blank line, and the lines with a line end
fn append(text: Option<&str>, lines: &str, newline: &str) -> String {
    match text {
        None => format!("{lines}{newline}"),
        Some("" | "\u{feff}") => format!("{}{lines}", text.unwrap_or_default()),
        Some(text) if text.ends_with('\n') => format!("{text}{newline}{lines}{newline}"),
        Some(text) => format!("{text}{newline}{lines}"),
    }
}

/// Takes whole lines out again that [`append`] put there. `None`: we made the file.
fn cut(text: &str, lines: std::ops::Range<usize>) -> Option<String> {
    let (before, after) = (&text[..lines.start], &text[lines.end..]);
    let ended = text[lines.clone()].ends_with('\n');
    if ended && before.is_empty() && after.is_empty() {
        return None;
    }
    let line_before = before.strip_suffix('\n').map(|rest| rest.strip_suffix('\r').unwrap_or(rest));
    let before = match line_before {
        // Our blank line, or the line end that the last line did not have.
        Some(rest) if !ended || rest.is_empty() || rest.ends_with('\n') => rest,
        _ => before,
    };
    Some(format!("{before}{after}"))
}

/// The whole lines that this range touches, with the last line's end.
fn whole_lines(text: &str, range: std::ops::Range<usize>) -> std::ops::Range<usize> {
    let start = text[..range.start].rfind('\n').map_or(jsonc::bom(text), |at| at + 1);
    let end = text[range.end..].find('\n').map_or(text.len(), |at| range.end + at + 1);
    start..end
}
