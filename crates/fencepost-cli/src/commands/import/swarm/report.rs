//! What came of it: every row of the file was imported, was there, or is listed.

use super::{
    cells::{Line, Told},
    file::Other,
};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::HashSet};

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub dry_run: bool,
    pub board: String,
    pub tables: Vec<Table>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What was turned into something else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<Line>,
    /// What could not be carried over as it was, or at all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<Line>,
    /// What was there already, and is not as it is in the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<Line>,
    /// Tables that have no place here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_tables: Vec<Other>,
}

/// A table of the file, and how many of its rows ended where.
#[derive(Debug, Serialize, Deserialize)]
pub struct Table {
    pub table: Cow<'static, str>,
    pub rows: usize,
    pub imported: usize,
    pub existing: usize,
    pub left_out: usize,
}

impl Report {
    /// Adds a table. `new` and `there` are ids of its rows; what was there says how it differs.
    pub fn table(
        &mut self,
        table: &'static str,
        rows: usize,
        new: &HashSet<String>,
        there: &[(String, Vec<String>)],
        told: &Told,
    ) {
        let name = |id: &String| format!("{table}/{id}");
        let mut own = new.iter().map(name).collect::<HashSet<_>>();
        for (id, differs) in there {
            self.differs.extend(differs.iter().map(|what| Line { row: name(id), what: what.clone() }));
        }
        let prefix = format!("{table}/");
        let out = told.out.iter().filter(|row| row.starts_with(&prefix));
        let left_out = out.map(|row| own.insert(row.clone())).count();
        // Of what was there already all this was said before.
        let of =
            |lines: &[Line]| lines.iter().filter(|line| own.contains(&line.row)).cloned().collect::<Vec<_>>();
        self.left.extend(of(&told.left));
        self.changed.extend(of(&told.changed));
        let table = table.into();
        self.tables.push(Table { table, rows, imported: new.len(), existing: there.len(), left_out });
    }

    pub fn told(&self) -> String {
        let mut lines = vec![self.headline()];
        let width = self.tables.iter().map(|table| table.table.len()).max().unwrap_or(0);
        let shown = |table: &&Table| table.imported + table.left_out > 0;
        for table in self.tables.iter().filter(shown) {
            let mut says = vec![format!("{} of {}", table.imported, table.rows)];
            if table.existing > 0 {
                says.push(format!("{} there already", table.existing));
            }
            if table.left_out > 0 {
                says.push(format!("{} left out", table.left_out));
            }
            if table.table == super::file::TASKS {
                says.push(format!("on board {}", self.board));
            }
            lines.push(format!("  {:<width$}  {}", table.table, says.join(", ")));
        }
        lines.extend(self.notes.iter().cloned());
        let parts = [
            ("became something else:", &self.changed),
            ("not carried over as it was:", &self.left),
            ("there already, and not as in the file:", &self.differs),
        ];
        for (title, part) in parts {
            if !part.is_empty() {
                lines.push(title.into());
            }
            let width = part.iter().map(|line| line.row.len()).max().unwrap_or(0);
            lines.extend(part.iter().map(|line| format!("  {:<width$}  {}", line.row, line.what)));
        }
        if !self.other_tables.is_empty() {
            lines.push("tables that have no place here:".into());
        }
        for other in &self.other_tables {
            let says = match (&other.rows, &other.unreadable) {
                (Some(1), _) => "1 row".to_owned(),
                (Some(rows), _) => format!("{rows} rows"),
                (None, why) => format!("cannot be read: {}", why.as_deref().unwrap_or_default()),
            };
            lines.push(format!("  {}  {says}", other.table));
        }
        lines.join("\n")
    }

    fn headline(&self) -> String {
        let sum = |of: fn(&Table) -> usize| self.tables.iter().map(of).sum::<usize>();
        let (imported, existing) = (sum(|table| table.imported), sum(|table| table.existing));
        let verb = if self.dry_run { "would import" } else { "imported" };
        match (imported, existing) {
            (0, 0) => "nothing to import".into(),
            (0, there) => format!("nothing to import: all {there} rows are there already"),
            (new, 0) => format!("{verb} {new} rows:"),
            (new, there) => format!("{verb} {new} rows, {there} were there already and left alone:"),
        }
    }
}
