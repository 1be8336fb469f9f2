//! The task list of a `.pm` directory: a sprint becomes a board.

mod file;
mod priority;
mod task;

use crate::{
    Renaming, Report, Target,
    batch::{self, tasks::break_cycles},
    boards,
    fit::fit,
    is_board, json_lines,
    names::{free, plain, slug},
    report::{Omission, other_titles},
    sqlite::Row,
};
use fencepost::{Error, Result, task::import::Item};
use file::PmFile;
use futures_util::future::LocalBoxFuture;
use priority::Priorities;
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    path::PathBuf,
};
use task::Task;

#[derive(Debug)]
pub struct Pm {
    pub file: PathBuf,
    /// Tells the tasks of this list from those of another list with the same sprints.
    pub name: Option<String>,
    /// Sprints and the boards that they become.
    pub boards: Vec<Renaming>,
    pub dry_run: bool,
}

impl Pm {
    pub fn import(self, target: &dyn Target) -> LocalBoxFuture<'_, Result<Report>> {
        Box::pin(self.send(target))
    }

    async fn send(self, target: &dyn Target) -> Result<Report> {
        let file = file::read(&self.file)?;
        let sprints = file.tasks.iter().map(|row| plain(row.get("sprint"))).collect();
        boards::check(&self.boards, "sprint", &sprints)?;
        let mut list = List::of(file, &sprints, &self.boards, self.name.as_deref());
        let locate = |error, item| locate(error, &list.items[item]);
        let reply = batch::tasks::send(target, &list.items, self.dry_run, &locate).await?;
        let new: HashSet<&String> = reply.imported.iter().collect();
        match list.items.iter().filter(|item| item.owner.is_some() && new.contains(&item.id)).count() {
            0 => {}
            1 => list.notes.push(
                "1 task had an owner; nobody holds the task now, and its event records the owner".into(),
            ),
            n => list.notes.push(format!(
                "{n} tasks had owners; nobody holds the tasks now, and their events record the owners"
            )),
        }
        let others = other_titles(&list.items, &reply.existing);
        if !others.is_empty() && self.name.is_none() {
            list.notes.push("if this is the list of another project, give it a name: --name NAME".into());
        }
        list.left.extend(others);
        let List { notes, left, .. } = list;
        Ok(Report { dry_run: self.dry_run, reply, notes, left, ..Report::default() })
    }
}

/// The refusal of one item, with its task, and with a hint if the board's number is another task's.
fn locate(error: Error, item: &Item) -> Error {
    let sprint = plain(item.origin.as_ref().and_then(|origin| origin.get("sprint")));
    let is_taken = error.field("taken").is_some();
    let error = json_lines::prefixed(error, &item.id);
    match (is_taken, item.id.rsplit_once('-')) {
        (true, Some((board, _))) => {
            error.hint(format!("put this sprint on another board: --board \"{sprint}={board}-imported\""))
        }
        _ => error,
    }
}

/// The tasks of the file, translated, and the parts that could not be carried over.
#[derive(Debug, Default)]
struct List {
    items: Vec<Item>,
    notes: Vec<String>,
    left: Vec<Omission>,
}

/// A task as the file names it.
type Name = (String, String);

impl List {
    fn of(file: PmFile, sprints: &BTreeSet<String>, renamings: &[Renaming], name: Option<&str>) -> List {
        let mut list = List::default();
        let boards = list.boards(sprints, renamings);
        let priorities = Priorities::of(&file.tasks);
        list.report_unknown_columns(&file.tasks);
        let mut at: HashMap<Name, usize> = HashMap::new();
        for row in file.tasks {
            let pm = (plain(row.get("sprint")), plain(row.get("task_num")));
            let board = &boards[&pm.0];
            let mut task = Task { id: format!("{board}-{}", pm.1), row, left: &mut list.left };
            let mut item = task.item(&priorities);
            item.key = Some(key(name, &pm.0, board, &pm.1));
            if fit(&mut item, &column, &mut list.left) {
                at.insert(pm, list.items.len());
                list.items.push(item);
            }
        }
        list.depend(&file.dependencies, &at);
        for (table, count) in file.others {
            list.notes.push(format!("table `{table}` and its {count} rows are left out"));
        }
        list
    }

    /// The board of each sprint. A sprint whose name is a valid board keeps it; the others get a new one.
    fn boards(&mut self, sprints: &BTreeSet<String>, renamings: &[Renaming]) -> HashMap<String, String> {
        let named = renamings.iter().map(|renaming| (renaming.from.clone(), renaming.to.clone()));
        let mut boards: HashMap<String, String> = named.collect();
        let kept = sprints.iter().filter(|name| is_board(name) && boards::renamed(renamings, name).is_none());
        boards.extend(kept.map(|name| (name.clone(), name.clone())));
        let mut taken: HashSet<String> = boards.values().cloned().collect();
        for sprint in sprints {
            if !boards.contains_key(sprint) {
                let base = Some(slug(sprint, 64)).filter(|slug| !slug.is_empty()).unwrap_or("sprint".into());
                let board = free(&base, &taken);
                taken.insert(board.clone());
                boards.insert(sprint.clone(), board);
            }
            if boards[sprint] != *sprint {
                self.notes.push(format!("sprint `{sprint}` is board {}", boards[sprint]));
            }
        }
        boards
    }

    /// Columns that the importer does not know stay in each task's `origin`.
    fn report_unknown_columns(&mut self, rows: &[Row]) {
        let unknown = |name: &&String| !TAKEN.contains(&name.as_str()) && !KEPT.contains(&name.as_str());
        let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.keys().filter(unknown)).collect();
        if !names.is_empty() {
            let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
            self.notes
                .push(format!("unknown columns are kept in each task's `origin`: {}", names.join(", ")));
        }
    }

    fn depend(&mut self, rows: &[Row], at: &HashMap<Name, usize>) {
        for row in rows {
            let name = |sprint: &str, n: &str| (plain(row.get(sprint)), plain(row.get(n)));
            let (this, on) = (name("sprint", "task_num"), name("depends_on_sprint", "depends_on_task"));
            let shown = |(sprint, n): &Name| format!("{sprint}/{n}");
            match (at.get(&this), at.get(&on)) {
                (Some(&this), Some(&on)) => {
                    let on = self.items[on].id.clone();
                    self.items[this].after.push(on);
                }
                (Some(&this), None) => {
                    let what =
                        format!("waited for {}, which does not exist; the dependency is dropped", shown(&on));
                    self.left.push(Omission { task: self.items[this].id.clone(), what });
                }
                (None, _) => {
                    let what =
                        format!("does not exist, but a dependency says that it waits for {}", shown(&on));
                    self.left.push(Omission { task: shown(&this), what });
                }
            }
        }
        for (item, what) in break_cycles(&mut self.items) {
            self.left.push(Omission { task: self.items[item].id.clone(), what });
        }
        for item in &mut self.items {
            fit(item, &column, &mut self.left);
        }
    }
}

/// The key by which the engine knows the task again. Two lists can have sprints of the same name, so the list's own name is
/// part of it. A sprint whose name is too long for a key is replaced by its board.
fn key(name: Option<&str>, sprint: &str, board: &str, n: &str) -> String {
    let list = name.map_or("pm".into(), |name| format!("pm:{name}"));
    let key = format!("{list}:{sprint}/{n}");
    if key.len() <= 128 { key } else { format!("{list}:{board}/{n}") }
}

/// The column that a field of an item came from.
fn column(field: &str) -> &str {
    match field {
        "body" => "description",
        "parked" => "blocked_reason",
        "output" => "commit_hash",
        "tags" => "skills",
        other => other,
    }
}

/// Columns that become fields of an item.
const TAKEN: &[&str] = &[
    "title",
    "description",
    "done_when",
    "status",
    "blocked_reason",
    "type",
    "owner",
    "completed_at",
    "created_at",
];
/// Columns that an item keeps in its `origin`.
const KEPT: &[&str] = &[
    "sprint",
    "task_num",
    "spec",
    "skills",
    "priority",
    "horizon",
    "session_id",
    "started_at",
    "commit_hash",
    "merged_at",
    "external_id",
    "updated_at",
];
