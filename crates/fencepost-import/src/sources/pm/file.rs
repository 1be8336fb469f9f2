//! The tables of a `.pm/tasks.db`.

use crate::sqlite::{self, Expected, Row};
use fencepost::{Error, Result};
use std::path::Path;

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
    let failed = |e: rusqlite::Error| PM.mismatch(path, &e.to_string());
    let connection = sqlite::open(path, &PM)?;
    let tables = sqlite::tables(&connection).map_err(failed)?;
    if !tables.iter().any(|name| name == "tasks") {
        return Err(PM.mismatch(path, "it has no table `tasks`"));
    }
    for column in ["sprint", "task_num", "title"] {
        if !connection.column_exists(None, "tasks", column).map_err(failed)? {
            return Err(PM.mismatch(path, &format!("its table `tasks` has no column `{column}`")));
        }
    }
    let rows = |sql: &str| sqlite::rows(&connection, sql, str::to_lowercase).map_err(failed);
    let tasks = rows("select * from tasks order by sprint, task_num")?;
    let dependencies = match tables.iter().any(|name| name == DEPENDENCIES) {
        true => rows(
            "select sprint, task_num, depends_on_sprint, depends_on_task from task_dependencies
             order by sprint, task_num, depends_on_sprint, depends_on_task",
        )?,
        false => Vec::new(),
    };
    let mut others = Vec::new();
    for name in tables.into_iter().filter(|name| name != "tasks" && name != DEPENDENCIES) {
        let count = sqlite::count(&connection, &name);
        match count.map_err(|e| Error::unavailable(format!("`{shown}` cannot be read: {e}")))? {
            0 => {}
            count => others.push((name, count)),
        }
    }
    Ok(PmFile { tasks, dependencies, others })
}
