//! The tables of a `.pm/tasks.db`.

use crate::sqlite::{Database, Expected, Row};
use fencepost::{Error, Result};
use serde_json::Value;
use std::{cmp::Ordering, path::Path};

#[derive(Debug)]
pub struct PmFile {
    pub tasks: Vec<Row>,
    pub dependencies: Vec<Row>,
    /// Other tables that are not empty, with their number of rows.
    pub others: Vec<(String, i64)>,
}

const PM: Expected = Expected {
    name: "a .pm/tasks.db",
    otherwise: "fence import jsonl imports tasks from anywhere",
    wanted: "fence import pm needs the database of a .pm directory: .pm/tasks.db",
};
const DEPENDENCIES: &str = "task_dependencies";

pub fn read(path: &Path) -> Result<PmFile> {
    let shown = path.display();
    let database = Database::open(path, &PM)?;
    let tables = database.tables()?;
    if !tables.iter().any(|name| name == "tasks") {
        return Err(database.mismatch("it has no table `tasks`"));
    }
    for column in ["sprint", "task_num", "title"] {
        if !database.has_column("tasks", column)? {
            return Err(database.mismatch(&format!("its table `tasks` has no column `{column}`")));
        }
    }
    let rows = |sql: &str, by: &[&str]| {
        let mut rows = database.rows(sql, str::to_lowercase)?;
        rows.sort_by(|a, b| {
            by.iter()
                .map(|column| order(a.get(*column), b.get(*column)))
                .fold(Ordering::Equal, Ordering::then)
        });
        Ok::<_, Error>(rows)
    };
    let tasks = rows("select * from tasks", &["sprint", "task_num"])?;
    let dependencies = match tables.iter().any(|name| name == DEPENDENCIES) {
        true => rows(
            "select sprint, task_num, depends_on_sprint, depends_on_task from task_dependencies",
            &["sprint", "task_num", "depends_on_sprint", "depends_on_task"],
        )?,
        false => Vec::new(),
    };
    let mut others = Vec::new();
    for name in tables.into_iter().filter(|name| name != "tasks" && name != DEPENDENCIES) {
        let count = database.count(&name);
        match count.map_err(|e| Error::unavailable(format!("`{shown}` cannot be read: {e}")))? {
            0 => {}
            count => others.push((name, count)),
        }
    }
    Ok(PmFile { tasks, dependencies, others })
}

/// The order of SQLite: nulls first, then numbers, then texts.
fn order(a: Option<&Value>, b: Option<&Value>) -> Ordering {
    let rank = |value: Option<&Value>| match value {
        None => 0,
        Some(Value::Number(_)) => 1,
        Some(_) => 2,
    };
    let number = |value: Option<&Value>| value.and_then(Value::as_f64).unwrap_or_default();
    let (text_a, text_b) = (a.and_then(Value::as_str), b.and_then(Value::as_str));
    rank(a).cmp(&rank(b)).then(number(a).total_cmp(&number(b))).then(text_a.cmp(&text_b))
}
