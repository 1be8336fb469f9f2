//! What a person sees: tables that fit, times from now, colour by state. Elsewhere plain text.

use crate::{
    foreign::{self, BREAK},
    out::{self, QUOTE},
};
use anstyle::{AnsiColor, Style};
use fencepost::{Millis, Time};
use std::collections::BTreeMap;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The same, as text.
const BREAK_TEXT: &str = "\u{fdd0}";

/// Where the output goes.
#[derive(Debug, Clone, Copy)]
pub struct Screen {
    /// The width of the terminal; `None` if it goes somewhere else, where nothing is cut, coloured or relative.
    width: Option<usize>,
    colour: bool,
    now: Time,
}

impl Screen {
    pub fn of_stdout(now: Time) -> Self {
        let width = out::width();
        Self { width, colour: width.is_some() && out::colours_are_wanted(), now }
    }

    /// The width of the terminal, if it is one.
    pub fn width(&self) -> Option<usize> {
        self.width
    }

    /// When the command began.
    pub fn now(&self) -> Time {
        self.now
    }

    /// `in 29m`, `3m ago`; elsewhere the moment itself.
    pub fn when(&self, at: Time) -> String {
        if self.width.is_none() {
            return at.to_string();
        }
        match at.since(self.now).0 {
            ms if ms >= 0 => format!("in {}", rough(Millis(ms))),
            ms => format!("{} ago", rough(Millis(-ms))),
        }
    }

    /// `until 12:04:10`, or `for another 29m` where times are relative.
    pub fn until(&self, at: Time) -> String {
        match self.width {
            None => format!("until {at}"),
            Some(_) if at > self.now => format!("for another {}", rough(at.since(self.now))),
            Some(_) => format!("until {} ago", rough(self.now.since(at))),
        }
    }

    /// The same, where there is little room.
    pub fn short_until(&self, at: Time) -> String {
        match self.width {
            Some(_) if at > self.now => format!("({})", rough(at.since(self.now))),
            _ => self.until(at),
        }
    }

    /// `12m`; elsewhere the span itself.
    pub fn span(&self, span: Millis) -> String {
        if self.width.is_some() { rough(span) } else { span.to_string() }
    }

    pub fn paint(&self, style: Style, text: &str) -> String {
        if self.colour && !text.is_empty() { out::styled(style, text) } else { text.to_owned() }
    }

    /// How a tree is drawn: a fork, the last branch, and a branch that goes on. Glyphs only on a terminal.
    pub fn branches(&self) -> (&'static str, &'static str, &'static str) {
        match self.width {
            Some(_) => ("├─ ", "└─ ", "│  "),
            None => ("|- ", "`- ", "|  "),
        }
    }

    /// As much of the text as there is room for on a line where so much is used.
    pub fn fit(&self, text: &str, used: &str) -> String {
        let text = line(text);
        self.width.map_or_else(|| text.clone(), |width| cut(&text, width.saturating_sub(used.width())))
    }

    /// The text in lines that fit a terminal, the first of them behind so many columns, the others indented. A word that is
    /// longer than a line stays whole: it is a path or a command, and cut it could not be used.
    pub fn wrap(&self, text: &str, used: usize, indent: usize) -> String {
        self.width.map_or_else(|| text.to_owned(), |limit| wrapped(text, limit, used, indent))
    }

    /// That there is more than is shown.
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

/// See [`Screen::wrap`].
pub fn wrapped(text: &str, limit: usize, used: usize, indent: usize) -> String {
    // As the writer would have it, or the columns could not be counted.
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
            let width = out::width_of(word);
            // A first word that does not fit behind what is there goes to the next line, if it gains room there.
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

/// Colour by state.
pub fn state(name: &str) -> Style {
    let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
    match name {
        "completed" | "processed" | "alive" | "online" | "ok" | "read" | "responded" | "delegated" => {
            colour(AnsiColor::Green)
        }
        "in_progress" | "processing" | "reviewing" | "held" | "warning" => colour(AnsiColor::Yellow),
        "failed" | "lapsed" | "problem" => colour(AnsiColor::Red),
        "blocked" | "parked" | "delayed" | "cancelled" | "ended" | "offline" | "left" => {
            Style::new().dimmed()
        }
        "unassigned" | "pending" | "offered" | "ready" | "unread" => colour(AnsiColor::Cyan),
        _ => Style::new(),
    }
}

/// Rows of aligned columns. On a terminal it has a head, and what is too long for the width is cut.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    /// It has its head everywhere, because its columns do not speak for themselves.
    headed: bool,
    rows: Vec<Vec<Cell>>,
    /// What is said below a row, by its place.
    notes: BTreeMap<usize, String>,
}

#[derive(Debug)]
struct Column {
    head: &'static str,
    right: bool,
}

#[derive(Debug)]
pub struct Cell {
    text: String,
    style: Style,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Cell { text: line(&text.into()), style: Style::new() }
    }
}

impl Cell {
    /// Coloured by the state that it names.
    pub fn state(name: &str) -> Self {
        Cell { style: state(name), ..Cell::from(name) }
    }
}

impl Table {
    /// Columns by their heads; one that starts with `>` is aligned to the right, and never cut. The last is cut first, the
    /// first never: it is what a person types.
    pub fn new(heads: &[&'static str]) -> Self {
        let column =
            |head: &&'static str| Column { head: head.trim_start_matches('>'), right: head.starts_with('>') };
        Self {
            columns: heads.iter().map(column).collect(),
            headed: false,
            rows: Vec::new(),
            notes: BTreeMap::new(),
        }
    }

    #[must_use]
    pub fn headed(self) -> Self {
        Self { headed: true, ..self }
    }

    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Says something below this row, in a line of its own.
    pub fn note(&mut self, row: usize, text: &str) {
        self.notes.insert(row, line(text));
    }

    fn noted(&self, row: usize, screen: &Screen) -> Option<String> {
        let note = self.notes.get(&row)?;
        Some(format!("{QUOTE}{}", screen.dim(&screen.wrap(note, QUOTE.len(), QUOTE.len()))))
    }

    pub fn render(&self, screen: &Screen) -> String {
        let with_head = screen.width.is_some() || self.headed;
        let Some(widths) = self.widths(screen.width, with_head) else { return self.stacked(screen) };
        let head = self
            .columns
            .iter()
            .map(|column| Cell { style: Style::new().dimmed(), ..Cell::from(column.head) });
        let head = with_head.then(|| self.line(&head.collect::<Vec<_>>(), &widths, screen));
        head.into_iter().chain(self.lines(&widths, screen)).collect::<Vec<_>>().join("\n")
    }

    /// Without its head.
    pub fn body(&self, screen: &Screen) -> String {
        match self.widths(screen.width, false) {
            Some(widths) => self.lines(&widths, screen).collect::<Vec<_>>().join("\n"),
            None => self.stacked(screen),
        }
    }

    fn lines<'t>(&'t self, widths: &'t [usize], screen: &'t Screen) -> impl Iterator<Item = String> + 't {
        let row = move |(at, row): (usize, &'t Vec<Cell>)| {
            std::iter::once(self.line(row, widths, screen)).chain(self.noted(at, screen))
        };
        self.rows.iter().enumerate().flat_map(row)
    }

    /// As wide as the widest cell, and nothing where all are empty; the last columns give way until all fits, and those
    /// that are behind the first once more. `None` if even that is not enough.
    fn widths(&self, limit: Option<usize>, with_head: bool) -> Option<Vec<usize>> {
        let head = |at: usize| if with_head { self.columns[at].head.width() } else { 0 };
        let width = |at: usize| match self.rows.iter().map(|row| row[at].text.width()).max().unwrap_or(0) {
            0 => 0,
            widest => widest.max(head(at)),
        };
        let mut widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let Some(limit) = limit else { return Some(widths) };
        let gaps = 2 * widths.iter().filter(|&&width| width > 0).count().saturating_sub(1);
        let over = |widths: &[usize]| (widths.iter().sum::<usize>() + gaps).saturating_sub(limit);
        // Names, and what they are known by, stand in the first columns.
        for least in [12, 8, 5] {
            for at in (1..widths.len()).rev().filter(|at| !self.columns[*at].right) {
                widths[at] = widths[at].saturating_sub(over(&widths)).max(widths[at].min(least));
            }
        }
        (over(&widths) == 0).then_some(widths)
    }

    /// For a terminal that is too narrow for the columns: each row by itself, a line for each cell that says something.
    fn stacked(&self, screen: &Screen) -> String {
        let mut lines = Vec::new();
        for (place, row) in self.rows.iter().enumerate() {
            for (at, (cell, column)) in row.iter().zip(&self.columns).enumerate() {
                let head = column.head.to_lowercase();
                let (label, used) = match at {
                    0 => (String::new(), 0),
                    _ if head.is_empty() => ("  ".to_owned(), 2),
                    _ => (format!("  {} ", screen.dim(&format!("{head}:"))), head.width() + 4),
                };
                if !cell.text.is_empty() {
                    let text = screen.wrap(&cell.text, used, 4);
                    lines.push(format!("{label}{}", screen.paint(cell.style, &text)));
                }
            }
            lines.extend(self.noted(place, screen));
        }
        lines.join("\n")
    }

    fn line(&self, cells: &[Cell], widths: &[usize], screen: &Screen) -> String {
        let mut line = String::new();
        let shown = cells.iter().zip(&self.columns).zip(widths).filter(|(_, width)| **width > 0);
        let mut gap = 0;
        for ((cell, column), &width) in shown {
            let text = match screen.width {
                Some(_) => cut(&cell.text, width),
                None => cell.text.clone(),
            };
            let pad = width.saturating_sub(text.width());
            let (before, after) = if column.right { (pad, 0) } else { (0, pad) };
            line.extend(std::iter::repeat_n(' ', gap + before));
            line.push_str(&screen.paint(cell.style, &text));
            gap = after + 2;
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// A line that is made cell by cell. A terminal is never overrun; elsewhere nothing is cut.
#[derive(Debug)]
pub struct Strip<'s> {
    screen: &'s Screen,
    text: String,
    /// Columns that are used, and blank ones that come before the next cell.
    used: usize,
    gap: usize,
}

impl<'s> Strip<'s> {
    pub fn new(screen: &'s Screen) -> Self {
        Self { screen, text: String::new(), used: 0, gap: 0 }
    }

    /// Text in a column of this width. One that is longer pushes along what comes after it. A column of no width that
    /// has no text is left out.
    pub fn cell(&mut self, text: &str, width: usize, style: Style) {
        if width == 0 && text.is_empty() {
            return;
        }
        let room = self.screen.width.map(|limit| limit.saturating_sub(self.used + self.gap));
        let text = room.map_or_else(|| text.to_owned(), |room| cut(text, room));
        if !text.is_empty() {
            self.text.extend(std::iter::repeat_n(' ', self.gap));
            self.text.push_str(&self.screen.paint(style, &text));
            self.used += self.gap + text.width();
            self.gap = 0;
        }
        self.gap += width.saturating_sub(text.width()) + 2;
    }

    /// Text to which the next cell is joined.
    pub fn lead(&mut self, text: &str, style: Style) {
        self.cell(text, text.width(), style);
        self.gap = 0;
    }

    /// The same, and on a terminal a text that is longer than the column is cut.
    pub fn cut_cell(&mut self, text: &str, width: usize, style: Style) {
        match self.screen.width {
            Some(_) => self.cell(&cut(text, width), width, style),
            None => self.cell(text, width, style),
        }
    }

    pub fn line(self) -> String {
        self.text
    }
}

/// One line of text: several would break what stands around it.
pub fn line(text: &str) -> String {
    lines(text).replace([BREAK, '\t'], " ")
}

/// A text that others wrote, or that was made safe to show already.
fn lines(text: &str) -> String {
    text.split(BREAK).map(foreign::shown).collect::<Vec<_>>().join(BREAK_TEXT)
}

/// JSON that was made safe to show: within its texts, a line's end is an escape again.
pub fn json(json: &impl ToString) -> String {
    json.to_string().replace(BREAK, "\\n")
}

/// What others wrote, as lines of their own: none begins at the margin, where only this program speaks.
pub fn quoted(text: &str) -> String {
    let line = |line: &str| if line.is_empty() { String::new() } else { format!("{QUOTE}{line}") };
    lines(text.trim_end_matches(|c: char| c.is_whitespace() || c == BREAK))
        .split(BREAK)
        .map(line)
        .collect::<Vec<_>>()
        .join("\n")
}

/// The same behind a label: it begins on the label's line.
pub fn labelled(text: &str) -> String {
    let text = quoted(text);
    text.strip_prefix(QUOTE).unwrap_or(&text).to_owned()
}

/// The first part that fits, with `…` for the rest.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["ID", ">PRI", "NOTE", "TITLE"]);
        table.row(vec!["auth-1".into(), "5".into(), "".into(), "write the 構文解析器 today".into()]);
        table.row(vec!["a-2".into(), "50".into(), "".into(), "two\nlines\x1b[2J".into()]);
        table
    }

    fn screen(width: Option<usize>) -> Screen {
        Screen { width, colour: false, now: Time(10_000_000) }
    }

    #[test]
    fn plain_tables_are_aligned_and_whole() {
        let plain = table().render(&screen(None));
        assert_eq!(plain, "auth-1   5  write the 構文解析器 today\na-2     50  two lines\\u{1b}[2J");
    }

    #[test]
    fn what_others_wrote_never_begins_at_the_margin() {
        assert_eq!(quoted("a\nclaim: b\r\n\n\tc\n"), "    a\n    claim: b\n\n    \tc");
        assert_eq!(quoted("a\u{fdd0}\x1bb\u{fdd0}"), "    a\n    \\u{1b}b");
        assert_eq!(labelled("a\nclaim: b"), "a\n    claim: b");
        assert_eq!(labelled("\nclaim: b"), "\n    claim: b");
        assert_eq!(quoted(""), "");
    }

    #[test]
    fn a_terminal_is_never_overrun() {
        for width in [21, 24, 30, 60] {
            let shown = table().render(&screen(Some(width)));
            assert!(shown.lines().all(|line| line.width() <= width), "{width}:\n{shown}");
        }
        let shown = table().render(&screen(Some(30)));
        assert_eq!(
            shown,
            "ID      PRI  TITLE\nauth-1    5  write the 構文解…\na-2      50  two lines\\u{1b}[…"
        );
    }

    #[test]
    fn a_narrow_terminal_has_each_row_by_itself() {
        let shown = table().render(&screen(Some(16)));
        assert_eq!(
            shown,
            "auth-1\n  pri: 5\n  title: write\n    the\n    構文解析器\n    today\na-2\n  pri: 50\n  title: two\n    \
             lines\\u{1b}[2J"
        );
    }

    #[test]
    fn names_and_numbers_are_cut_last() {
        let mut table = Table::new(&["CLAIM", ">N", "RUN", "REASON"]);
        table.row(vec![
            "task/authentication-3@42".into(),
            "123456".into(),
            "a-long-name".into(),
            "because of it".into(),
        ]);
        let shown = table.render(&screen(Some(48)));
        assert!(shown.contains("\ntask/authentication-3@42  123456  a-long…  beca…"), "{shown}");
        let shown = table.body(&screen(Some(44)));
        assert_eq!(
            shown,
            "task/authentication-3@42\n  n: 123456\n  run: a-long-name\n  reason: because of it"
        );
    }

    #[test]
    fn text_is_wrapped_between_words() {
        let narrow = screen(Some(12));
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
        assert_eq!(screen(None).wrap("one two three four", 6, 2), "one two three four");
        let painted = Screen { colour: true, ..narrow };
        let text = painted.wrap(&format!("{} two three", painted.bold("one")), 0, 2);
        assert_eq!(out::rendered(&text), "\x1b[1mone\x1b[0m two\n  three");
    }

    #[test]
    fn times_are_from_now_only_on_a_terminal() {
        let near = screen(Some(80));
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
        assert_eq!(screen(None).when(Time(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(screen(None).until(Time(0)), "until 1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn colour_is_by_state() {
        let screen = Screen { colour: true, ..screen(Some(80)) };
        let mut table = Table::new(&["STATUS"]);
        table.row(vec![Cell::state("failed")]);
        let shown = out::rendered(&table.render(&screen));
        assert!(shown.ends_with("\x1b[31mfailed\x1b[0m"), "{shown:?}");
    }
}
