//! The terminal that standard output is: its width, its colours, and times from now. Elsewhere all is plain text.

use super::{
    streams,
    text::{cut, line, wrapped},
};
use anstyle::{AnsiColor, Style};
use fencepost::{Millis, Time};
use unicode_width::UnicodeWidthStr;

/// The terminal that standard output is, or a plain stream.
#[derive(Debug, Clone, Copy)]
pub struct Terminal {
    /// `None` for a plain stream. Its text is never cut or coloured, and its times are absolute.
    width: Option<usize>,
    colour: bool,
    now: Time,
}

impl Terminal {
    pub fn of_stdout(now: Time) -> Self {
        let width = streams::width();
        Self { width, colour: width.is_some() && streams::colours_are_wanted(), now }
    }

    /// A plain stream, such as a file.
    pub fn plain(now: Time) -> Self {
        Self { width: None, colour: false, now }
    }

    /// A part of a live view that is this wide.
    pub fn of_view(width: u16, now: Time) -> Self {
        Self { width: Some(usize::from(width)), colour: streams::colours_are_wanted(), now }
    }

    /// The width of the terminal, if it is one.
    pub fn width(&self) -> Option<usize> {
        self.width
    }

    /// When the command began.
    pub fn now(&self) -> Time {
        self.now
    }

    /// `in 29m`, `3m ago`; on a plain stream the time itself.
    pub fn when(&self, at: Time) -> String {
        if self.width.is_none() {
            return at.to_string();
        }
        match at.since(self.now).0 {
            ms if ms >= 0 => format!("in {}", rough(Millis(ms))),
            ms => format!("{} ago", rough(Millis(-ms))),
        }
    }

    /// `for another 29m`; on a plain stream `until 12:04:10`.
    pub fn until(&self, at: Time) -> String {
        match self.width {
            None => format!("until {at}"),
            Some(_) if at > self.now => format!("for another {}", rough(at.since(self.now))),
            Some(_) => format!("until {} ago", rough(self.now.since(at))),
        }
    }

    /// The same in fewer columns.
    pub fn short_until(&self, at: Time) -> String {
        match self.width {
            Some(_) if at > self.now => format!("({})", rough(at.since(self.now))),
            _ => self.until(at),
        }
    }

    /// `12m`; on a plain stream the span itself.
    pub fn span(&self, span: Millis) -> String {
        if self.width.is_some() { rough(span) } else { span.to_string() }
    }

    pub fn paint(&self, style: Style, text: &str) -> String {
        if self.colour && !text.is_empty() { streams::styled(style, text) } else { text.to_owned() }
    }

    /// The parts of a tree: a fork, the last branch, and a branch that goes on.
    pub fn branches(&self) -> (&'static str, &'static str, &'static str) {
        match self.width {
            Some(_) => ("├─ ", "└─ ", "│  "),
            None => ("|- ", "`- ", "|  "),
        }
    }

    /// The text, cut to the rest of a line that begins with `used`.
    pub fn fit(&self, text: &str, used: &str) -> String {
        let text = line(text);
        self.width.map_or_else(|| text.clone(), |width| cut(&text, width.saturating_sub(used.width())))
    }

    /// The text in lines that fit the terminal. The first line begins after `used` columns, the others are indented. A word that
    /// is longer than a line stays whole: it is a path or a command, which could not be used if it were cut.
    pub fn wrap(&self, text: &str, used: usize, indent: usize) -> String {
        self.width.map_or_else(|| text.to_owned(), |limit| wrapped(text, limit, used, indent))
    }

    /// Says that there is more than is shown.
    pub fn and_more(&self, how: &str) -> String {
        format!("{} and more: {how}", if self.width.is_some() { "…" } else { "..." })
    }

    pub fn bold(&self, text: &str) -> String {
        self.paint(Style::new().bold(), text)
    }

    pub fn dim(&self, text: &str) -> String {
        self.paint(Style::new().dimmed(), text)
    }
}

/// The two largest units that matter: `45s`, `29m`, `2h 5m`, `3d 4h`.
pub fn rough(span: Millis) -> String {
    let s = span.0 / 1000;
    let two = |big: i64, unit: &str, small: i64, sub: &str| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit} {small}{sub}"),
    };
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m", s / 60),
        3600..86_400 => two(s / 3600, "h", s / 60 % 60, "m"),
        _ => two(s / 86_400, "d", s / 3600 % 24, "h"),
    }
}

/// The colour of a state.
pub fn state(name: &str) -> Style {
    let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
    match name {
        "completed" | "processed" | "succeeded" | "alive" | "online" | "ok" | "read" | "responded"
        | "delegated" => colour(AnsiColor::Green),
        "in_progress" | "processing" | "running" | "reviewing" | "held" | "paused" | "stranded"
        | "warning" => colour(AnsiColor::Yellow),
        "failed" | "lapsed" | "in_doubt" | "problem" => colour(AnsiColor::Red),
        "blocked" | "parked" | "delayed" | "cancelled" | "ended" | "offline" | "left" => {
            Style::new().dimmed()
        }
        "unassigned" | "pending" | "offered" | "ready" | "unread" => colour(AnsiColor::Cyan),
        _ => Style::new(),
    }
}

#[cfg(test)]
impl Terminal {
    /// Of this width and without colours, at a fixed time.
    pub fn fixed(width: Option<usize>) -> Self {
        Self { width, colour: false, now: Time(10_000_000) }
    }

    pub fn coloured(self) -> Self {
        Self { colour: true, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_between_words() {
        let narrow = Terminal::fixed(Some(12));
        for (text, used, says) in [
            ("one two three four", 0, "one two\n  three four"),
            ("one two three four", 6, "one\n  two three\n  four"),
            ("/a/very/long/path it is", 0, "/a/very/long/path\n  it is"),
            ("/a/long/path it is", 6, "\n  /a/long/path\n  it is"),
            ("a  b\n    see there now", 0, "a  b\n    see\n    there\n    now"),
            ("a\u{fdd0}b c", 0, "a\n    b c"),
        ] {
            assert_eq!(narrow.wrap(text, used, 2), says, "{text}");
        }
        assert_eq!(Terminal::fixed(None).wrap("one two three four", 6, 2), "one two three four");
        let painted = narrow.coloured();
        let text = painted.wrap(&format!("{} two three", painted.bold("one")), 0, 2);
        assert_eq!(streams::rendered(&text), "\x1b[1mone\x1b[0m two\n  three");
    }

    #[test]
    fn times_are_from_now_only_on_a_terminal() {
        let near = Terminal::fixed(Some(80));
        for (at, says) in [
            (Time(10_000_000 + 45_999), "in 45s"),
            (Time(10_000_000 - 61_000), "1m ago"),
            (Time(10_000_000 + 7_500_000), "in 2h 5m"),
            (Time(10_000_000 + 90_000_000), "in 1d 1h"),
            (Time(10_000_000), "in 0s"),
        ] {
            assert_eq!(near.when(at), says);
        }
        assert_eq!(near.until(Time(10_060_000)), "for another 1m");
        assert_eq!(Terminal::fixed(None).when(Time(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(Terminal::fixed(None).until(Time(0)), "until 1970-01-01T00:00:00.000Z");
    }
}
