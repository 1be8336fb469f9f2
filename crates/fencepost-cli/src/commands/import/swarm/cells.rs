//! A row on its way here, and what there is to be said of it.

use crate::commands::import::{
    file::{BYTES, Row},
    words::{plain, time},
};
use fencepost::Time;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Something about one row: `agent_tasks/ID`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    pub row: String,
    pub what: String,
}

/// What is told of an import.
#[derive(Debug, Default)]
pub struct Told {
    /// What was turned into something else.
    pub changed: Vec<Line>,
    /// What could not be carried over as it was, or at all.
    pub left: Vec<Line>,
    /// The rows that do not come.
    pub out: HashSet<String>,
    /// What is said once for all: columns that mean nothing here, by table.
    pub useless: BTreeMap<&'static str, BTreeSet<String>>,
    pub notes: Vec<String>,
}

pub struct Cells<'t> {
    table: &'static str,
    pub id: String,
    /// What it is called here.
    pub called: String,
    pub row: Row,
    told: &'t mut Told,
}

impl<'t> Cells<'t> {
    pub fn new(table: &'static str, id: String, mut row: Row, told: &'t mut Told) -> Self {
        let bytes: Vec<String> =
            row.iter().filter(|(_, value)| *value == BYTES).map(|(name, _)| name.clone()).collect();
        bytes.iter().for_each(|column| drop(row.shift_remove(column)));
        let mut cells = Self { table, id, called: String::new(), row, told };
        for column in bytes {
            cells.left(format!("{column} holds bytes, not text; it is left out"));
        }
        cells
    }

    pub fn name(&self) -> String {
        format!("{}/{}", self.table, self.id)
    }

    fn line(&self, what: String) -> Line {
        let what = if self.called.is_empty() { what } else { format!("{}: {what}", self.called) };
        Line { row: self.name(), what }
    }

    pub fn left(&mut self, what: impl Into<String>) {
        let line = self.line(what.into());
        self.told.left.push(line);
    }

    pub fn changed(&mut self, what: impl Into<String>) {
        let line = self.line(what.into());
        self.told.changed.push(line);
    }

    /// The row does not come.
    pub fn out(&mut self, why: impl Into<String>) {
        self.left(format!("is left out: {}", why.into()));
        self.told.out.insert(self.name());
    }

    /// Takes a text out of the row; one that is empty says nothing.
    pub fn take(&mut self, column: &str) -> Option<String> {
        let value = self.row.shift_remove(column)?;
        Some(plain(Some(&value))).filter(|text| !text.trim().is_empty())
    }

    /// Takes a time out of the row, if it is one.
    pub fn time(&mut self, column: &str) -> Option<Time> {
        let value = self.row.shift_remove(column)?;
        let at = time(&value);
        if at.is_none() {
            self.left(format!("{column} `{}` is no time; it is left out", plain(Some(&value))));
        }
        at
    }

    /// Takes a list of texts out of the row.
    pub fn list(&mut self, column: &str) -> Vec<String> {
        let Some(text) = self.take(column) else { return Vec::new() };
        match serde_json::from_str::<Vec<Value>>(&text) {
            Ok(values) => values.iter().map(|value| plain(Some(value))).collect(),
            Err(_) => {
                self.left(format!("{column} `{text}` is no list; it is left out"));
                Vec::new()
            }
        }
    }

    /// Drops columns whose meaning has another source here; that is said once for the table.
    pub fn useless(&mut self, columns: &[&str]) {
        for column in columns {
            if self.row.shift_remove(*column).is_some() {
                self.told.useless.entry(self.table).or_default().insert((*column).into());
            }
        }
    }

    /// What is left in the row has no place here.
    pub fn nothing_else(mut self) {
        let says = |value: &Value| {
            !matches!(plain(Some(value)).as_str(), "" | "[]" | "{}" | "0") && !value.is_null()
        };
        let row = std::mem::take(&mut self.row);
        let columns: Vec<_> =
            row.iter().filter(|(_, value)| says(value)).map(|(name, _)| format!("`{name}`")).collect();
        if !columns.is_empty() {
            self.left(format!("{}: no place here, left out", columns.join(", ")));
        }
    }
}
