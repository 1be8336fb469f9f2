//! A row from which columns are taken one by one, and the remarks on it.

use crate::{
    names::{plain, time},
    sqlite::{BYTES, Row},
};
use fencepost::Time;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// A remark on one row, such as `agent_tasks/ID`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remark {
    pub row: String,
    pub what: String,
}

/// All remarks on an import.
#[derive(Debug, Default)]
pub struct Remarks {
    /// Rows that became something else.
    pub changed: Vec<Remark>,
    /// Rows that could not be carried over as they were, or at all.
    pub left: Vec<Remark>,
    /// The rows that are not imported.
    pub skipped: HashSet<String>,
    /// Columns that are not imported because the fleet records the same by itself, by table.
    pub dropped: BTreeMap<&'static str, BTreeSet<String>>,
    pub notes: Vec<String>,
}

/// One row, with the remarks that its columns cause.
pub struct TableRow<'t> {
    table: &'static str,
    pub id: String,
    /// The name that it gets in the fleet, for the remarks.
    pub new_name: String,
    pub columns: Row,
    remarks: &'t mut Remarks,
}

impl<'t> TableRow<'t> {
    pub fn new(table: &'static str, id: String, mut columns: Row, remarks: &'t mut Remarks) -> Self {
        let bytes: Vec<String> =
            columns.iter().filter(|(_, value)| *value == BYTES).map(|(name, _)| name.clone()).collect();
        bytes.iter().for_each(|column| drop(columns.shift_remove(column)));
        let mut row = Self { table, id, new_name: String::new(), columns, remarks };
        for column in bytes {
            row.left(format!("{column} holds bytes, not text; it is left out"));
        }
        row
    }

    pub fn name(&self) -> String {
        format!("{}/{}", self.table, self.id)
    }

    fn remark(&self, what: String) -> Remark {
        let what = if self.new_name.is_empty() { what } else { format!("{}: {what}", self.new_name) };
        Remark { row: self.name(), what }
    }

    pub fn left(&mut self, what: impl Into<String>) {
        let remark = self.remark(what.into());
        self.remarks.left.push(remark);
    }

    pub fn changed(&mut self, what: impl Into<String>) {
        let remark = self.remark(what.into());
        self.remarks.changed.push(remark);
    }

    /// The row is not imported.
    pub fn skip(&mut self, why: impl Into<String>) {
        self.left(format!("is left out: {}", why.into()));
        self.remarks.skipped.insert(self.name());
    }

    /// Takes a text out of the row; `None` if it is empty.
    pub fn take(&mut self, column: &str) -> Option<String> {
        let value = self.columns.shift_remove(column)?;
        Some(plain(Some(&value))).filter(|text| !text.trim().is_empty())
    }

    /// Takes a time out of the row; `None` if it does not parse.
    pub fn time(&mut self, column: &str) -> Option<Time> {
        let value = self.columns.shift_remove(column)?;
        let at = time(&value);
        if at.is_none() {
            self.left(format!("{column} `{}` is not a time; it is left out", plain(Some(&value))));
        }
        at
    }

    /// Takes a list of texts out of the row.
    pub fn list(&mut self, column: &str) -> Vec<String> {
        let Some(text) = self.take(column) else { return Vec::new() };
        match serde_json::from_str::<Vec<Value>>(&text) {
            Ok(values) => values.iter().map(|value| plain(Some(value))).collect(),
            Err(_) => {
                self.left(format!("{column} `{text}` is not a list; it is left out"));
                Vec::new()
            }
        }
    }

    /// Drops columns that the fleet records by itself. The report says so once for the table.
    pub fn drop_columns(&mut self, columns: &[&str]) {
        for column in columns {
            if self.columns.shift_remove(*column).is_some() {
                self.remarks.dropped.entry(self.table).or_default().insert((*column).into());
            }
        }
    }

    /// Reports the columns that nobody took.
    pub fn finish(mut self) {
        let has_content = |value: &Value| {
            !matches!(plain(Some(value)).as_str(), "" | "[]" | "{}" | "0") && !value.is_null()
        };
        let rest = std::mem::take(&mut self.columns);
        let columns: Vec<_> = rest
            .iter()
            .filter(|(_, value)| has_content(value))
            .map(|(name, _)| format!("`{name}`"))
            .collect();
        if !columns.is_empty() {
            self.left(format!("{}: left out, because a fleet has nothing like it", columns.join(", ")));
        }
    }
}
