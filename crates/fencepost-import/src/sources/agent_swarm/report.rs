//! The result of an import, for programs and for people. Every row of the file was imported, existed already, or is listed.

use super::{
    file::Other,
    row::{Remark, Remarks},
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
    /// Rows that became something else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<Remark>,
    /// Rows that could not be carried over as they were, or at all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<Remark>,
    /// Rows that the fleet had already, with different content.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<Remark>,
    /// Tables that cannot be imported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_tables: Vec<Other>,
}

/// A table of the file, and the results of its rows.
#[derive(Debug, Serialize, Deserialize)]
pub struct Table {
    pub table: Cow<'static, str>,
    pub rows: usize,
    pub imported: usize,
    pub existing: usize,
    pub left_out: usize,
}

impl Report {
    /// Adds a table. `new` and `existing` are ids of its rows; an existing row comes with its differences.
    pub fn add(
        &mut self,
        table: &'static str,
        rows: usize,
        new: &HashSet<String>,
        existing: &[(String, Vec<String>)],
        remarks: &Remarks,
    ) {
        let name = |id: &String| format!("{table}/{id}");
        let mut reported = new.iter().map(name).collect::<HashSet<_>>();
        for (id, differs) in existing {
            self.differs.extend(differs.iter().map(|what| Remark { row: name(id), what: what.clone() }));
        }
        let prefix = format!("{table}/");
        let skipped = remarks.skipped.iter().filter(|row| row.starts_with(&prefix));
        let left_out = skipped.map(|row| reported.insert(row.clone())).count();
        // The remarks on existing rows were reported by the import that brought them.
        let of = |remarks: &[Remark]| {
            remarks.iter().filter(|remark| reported.contains(&remark.row)).cloned().collect::<Vec<_>>()
        };
        self.left.extend(of(&remarks.left));
        self.changed.extend(of(&remarks.changed));
        let table = table.into();
        self.tables.push(Table { table, rows, imported: new.len(), existing: existing.len(), left_out });
    }

    /// The report as text for people.
    pub fn describe(&self) -> String {
        let mut lines = vec![self.headline()];
        let width = self.tables.iter().map(|table| table.table.len()).max().unwrap_or(0);
        let shown = |table: &&Table| table.imported + table.left_out > 0;
        for table in self.tables.iter().filter(shown) {
            let mut parts = vec![format!("{} of {}", table.imported, table.rows)];
            if table.existing > 0 {
                parts.push(format!("{} existing", table.existing));
            }
            if table.left_out > 0 {
                parts.push(format!("{} left out", table.left_out));
            }
            if table.table == super::file::TASKS {
                parts.push(format!("on board {}", self.board));
            }
            lines.push(format!("  {:<width$}  {}", table.table, parts.join(", ")));
        }
        lines.extend(self.notes.iter().cloned());
        let sections = [
            ("converted:", &self.changed),
            ("not carried over unchanged:", &self.left),
            ("existing, and different from the file:", &self.differs),
        ];
        for (title, remarks) in sections {
            if !remarks.is_empty() {
                lines.push(title.into());
            }
            let width = remarks.iter().map(|remark| remark.row.len()).max().unwrap_or(0);
            lines.extend(remarks.iter().map(|remark| format!("  {:<width$}  {}", remark.row, remark.what)));
        }
        if !self.other_tables.is_empty() {
            lines.push("tables that cannot be imported:".into());
        }
        for other in &self.other_tables {
            let size = match (&other.rows, &other.unreadable) {
                (Some(1), _) => "1 row".to_owned(),
                (Some(rows), _) => format!("{rows} rows"),
                (None, why) => format!("cannot be read: {}", why.as_deref().unwrap_or_default()),
            };
            lines.push(format!("  {}  {size}", other.table));
        }
        lines.join("\n")
    }

    fn headline(&self) -> String {
        let sum = |of: fn(&Table) -> usize| self.tables.iter().map(of).sum::<usize>();
        let (imported, existing) = (sum(|table| table.imported), sum(|table| table.existing));
        let verb = if self.dry_run { "would import" } else { "imported" };
        match (imported, existing) {
            (0, 0) => "nothing to import".into(),
            (0, existing) => format!("nothing to import: all {existing} rows exist already"),
            (new, 0) => format!("{verb} {new} rows:"),
            (new, existing) => format!("{verb} {new} rows, {existing} existed already and were not changed:"),
        }
    }
}
