//! Tables that fit the terminal.

use super::{
    Terminal,
    streams::QUOTE,
    terminal::state,
    text::{cut, line},
};
use anstyle::Style;
use std::collections::BTreeMap;
use unicode_width::UnicodeWidthStr;

/// Rows of aligned columns. On a terminal it has a head, and cells that are too long for the width are cut.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    /// Has a head on a plain stream, too, because its columns are not obvious.
    headed: bool,
    rows: Vec<Vec<Cell>>,
    /// Lines below a row, by the index of the row.
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
    /// A cell with the name of a state, in the colour of that state.
    pub fn state(name: &str) -> Self {
        Cell::styled(name, state(name))
    }

    /// The same, with another text than the state's name.
    pub fn state_as(name: &str, text: String) -> Self {
        Cell::styled(&text, state(name))
    }

    pub fn styled(text: &str, style: Style) -> Self {
        Cell { style, ..Cell::from(text) }
    }
}

impl Table {
    /// Columns by their heads. A head that starts with `>` aligns its column to the right, and such a column is never cut. The
    /// last column is cut first. The first is never cut: it is what a person types.
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

    /// Adds a line below this row.
    pub fn note(&mut self, row: usize, text: &str) {
        self.notes.insert(row, line(text));
    }

    fn note_line(&self, row: usize, terminal: &Terminal) -> Option<String> {
        let note = self.notes.get(&row)?;
        Some(format!("{QUOTE}{}", terminal.dim(&terminal.wrap(note, QUOTE.len(), QUOTE.len()))))
    }

    pub fn render(&self, terminal: &Terminal) -> String {
        let with_head = terminal.width().is_some() || self.headed;
        let Some(widths) = self.widths(terminal.width(), with_head) else { return self.stacked(terminal) };
        let head = self
            .columns
            .iter()
            .map(|column| Cell { style: Style::new().dimmed(), ..Cell::from(column.head) });
        let head = with_head.then(|| self.line(&head.collect::<Vec<_>>(), &widths, terminal));
        head.into_iter().chain(self.lines(&widths, terminal)).collect::<Vec<_>>().join("\n")
    }

    /// The rows without the head.
    pub fn body(&self, terminal: &Terminal) -> String {
        match self.widths(terminal.width(), false) {
            Some(widths) => self.lines(&widths, terminal).collect::<Vec<_>>().join("\n"),
            None => self.stacked(terminal),
        }
    }

    fn lines<'t>(&'t self, widths: &'t [usize], terminal: &'t Terminal) -> impl Iterator<Item = String> + 't {
        let row = move |(at, row): (usize, &'t Vec<Cell>)| {
            std::iter::once(self.line(row, widths, terminal)).chain(self.note_line(at, terminal))
        };
        self.rows.iter().enumerate().flat_map(row)
    }

    /// Each column as wide as its widest cell, and 0 if all its cells are empty. The last columns are narrowed until the row
    /// fits, in three rounds. `None` if even that is not enough.
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
        // The first columns have names and states, so they are narrowed last.
        for least in [12, 8, 5] {
            for at in (1..widths.len()).rev().filter(|at| !self.columns[*at].right) {
                widths[at] = widths[at].saturating_sub(over(&widths)).max(widths[at].min(least));
            }
        }
        (over(&widths) == 0).then_some(widths)
    }

    /// For a terminal that is too narrow for the columns: a line for each cell that is not empty.
    fn stacked(&self, terminal: &Terminal) -> String {
        let mut lines = Vec::new();
        for (index, row) in self.rows.iter().enumerate() {
            for (at, (cell, column)) in row.iter().zip(&self.columns).enumerate() {
                let head = column.head.to_lowercase();
                let (label, used) = match at {
                    0 => (String::new(), 0),
                    _ if head.is_empty() => ("  ".to_owned(), 2),
                    _ => (format!("  {} ", terminal.dim(&format!("{head}:"))), head.width() + 4),
                };
                if !cell.text.is_empty() {
                    let text = terminal.wrap(&cell.text, used, 4);
                    lines.push(format!("{label}{}", terminal.paint(cell.style, &text)));
                }
            }
            lines.extend(self.note_line(index, terminal));
        }
        lines.join("\n")
    }

    fn line(&self, cells: &[Cell], widths: &[usize], terminal: &Terminal) -> String {
        let mut line = String::new();
        let shown = cells.iter().zip(&self.columns).zip(widths).filter(|(_, width)| **width > 0);
        let mut gap = 0;
        for ((cell, column), &width) in shown {
            let text = match terminal.width() {
                Some(_) => cut(&cell.text, width),
                None => cell.text.clone(),
            };
            let pad = width.saturating_sub(text.width());
            let (before, after) = if column.right { (pad, 0) } else { (0, pad) };
            line.extend(std::iter::repeat_n(' ', gap + before));
            line.push_str(&terminal.paint(cell.style, &text));
            gap = after + 2;
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// A line that is built cell by cell. On a terminal it never exceeds the width; on a plain stream nothing is cut.
#[derive(Debug)]
pub struct CellLine<'s> {
    terminal: &'s Terminal,
    text: String,
    /// Columns that are used, and blank columns before the next cell.
    used: usize,
    gap: usize,
}

impl<'s> CellLine<'s> {
    pub fn new(terminal: &'s Terminal) -> Self {
        Self { terminal, text: String::new(), used: 0, gap: 0 }
    }

    /// Adds a cell with a column of this width. A longer text moves the following cells to the right. An empty cell with a column
    /// of width 0 is left out.
    pub fn cell(&mut self, text: &str, width: usize, style: Style) {
        if width == 0 && text.is_empty() {
            return;
        }
        let room = self.terminal.width().map(|limit| limit.saturating_sub(self.used + self.gap));
        let text = room.map_or_else(|| text.to_owned(), |room| cut(text, room));
        if !text.is_empty() {
            self.text.extend(std::iter::repeat_n(' ', self.gap));
            self.text.push_str(&self.terminal.paint(style, &text));
            self.used += self.gap + text.width();
            self.gap = 0;
        }
        self.gap += width.saturating_sub(text.width()) + 2;
    }

    /// Adds a text that the next cell follows without a gap.
    pub fn prefix(&mut self, text: &str, style: Style) {
        self.cell(text, text.width(), style);
        self.gap = 0;
    }

    /// Adds a cell. On a terminal, a text that is longer than the column is cut.
    pub fn cut_cell(&mut self, text: &str, width: usize, style: Style) {
        match self.terminal.width() {
            Some(_) => self.cell(&cut(text, width), width, style),
            None => self.cell(text, width, style),
        }
    }

    pub fn finish(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::streams;

    fn table() -> Table {
        let mut table = Table::new(&["ID", ">PRI", "NOTE", "TITLE"]);
        table.row(vec!["auth-1".into(), "5".into(), "".into(), "write the 構文解析器 today".into()]);
        table.row(vec!["a-2".into(), "50".into(), "".into(), "two\nlines\x1b[2J".into()]);
        table
    }

    #[test]
    fn plain_tables_are_aligned_and_whole() {
        let plain = table().render(&Terminal::fixed(None));
        assert_eq!(plain, "auth-1   5  write the 構文解析器 today\na-2     50  two lines\\u{1b}[2J");
    }

    #[test]
    fn a_terminal_is_never_overrun() {
        for width in [21, 24, 30, 60] {
            let shown = table().render(&Terminal::fixed(Some(width)));
            assert!(shown.lines().all(|line| line.width() <= width), "{width}:\n{shown}");
        }
        let shown = table().render(&Terminal::fixed(Some(30)));
        assert_eq!(
            shown,
            "ID      PRI  TITLE\nauth-1    5  write the 構文解…\na-2      50  two lines\\u{1b}[…"
        );
    }

    #[test]
    fn a_narrow_terminal_has_each_row_by_itself() {
        let shown = table().render(&Terminal::fixed(Some(16)));
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
        let shown = table.render(&Terminal::fixed(Some(48)));
        assert!(shown.contains("\ntask/authentication-3@42  123456  a-long…  beca…"), "{shown}");
        let shown = table.body(&Terminal::fixed(Some(44)));
        assert_eq!(
            shown,
            "task/authentication-3@42\n  n: 123456\n  run: a-long-name\n  reason: because of it"
        );
    }

    #[test]
    fn colour_is_by_state() {
        let terminal = Terminal::fixed(Some(80)).coloured();
        let mut table = Table::new(&["STATUS"]);
        table.row(vec![Cell::state("failed")]);
        let shown = streams::rendered(&table.render(&terminal));
        assert!(shown.ends_with("\x1b[31mfailed\x1b[0m"), "{shown:?}");
    }
}
