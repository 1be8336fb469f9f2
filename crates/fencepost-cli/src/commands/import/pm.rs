use super::{
    How, Left, Report,
    file::Row,
    fit::fit,
    is_board, order, other_titles,
    pm_file::{self, PmFile},
    pm_order::Order,
    pm_task::Task,
    send,
    words::{free, plain, slug},
};
use crate::{context::Context, lines};
use clap::Args;
use fencepost::{Error, Result, task::import::Item};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    path::PathBuf,
    process::ExitCode,
};

/// A .pm/tasks.db: a sprint becomes a board
///
/// pending and red tasks can be taken (red ones with a note of progress), green ones are completed, blocked ones
/// parked. The file is only read. What cannot be carried over is listed, and the rest is imported.
///
/// Examples:
///   fence import pm .pm/tasks.db --dry-run
///   fence import pm .pm/tasks.db --board "Billing Sprint 2=billing"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Pm {
    /// Its database, such as .pm/tasks.db
    file: PathBuf,
    /// Tells this list's tasks from those of another with the same sprints
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    how: How,
}

impl Pm {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let file = pm_file::read(&self.file)?;
        let sprints = file.tasks.iter().map(|row| plain(row.get("sprint"))).collect();
        self.how.check("sprint", &sprints)?;
        let mut list = List::of(file, &sprints, &self.how.board, self.name.as_deref());
        let label = |error: Error, sent: &dyn Fn(usize) -> usize| blame(error, &list.items, sent);
        let reply = match list.items.is_empty() {
            true => Default::default(),
            false => send(context, &list.items, self.how.dry_run, label).await?,
        };
        let new: HashSet<&String> = reply.imported.iter().collect();
        match list.items.iter().filter(|item| item.owner.is_some() && new.contains(&item.id)).count() {
            0 => {}
            1 => list.notes.push("1 had an owner, who holds nothing here; the events say who it was".into()),
            n => list
                .notes
                .push(format!("{n} had owners, who hold nothing here; the events say who they were")),
        }
        let others = other_titles(&list.items, &reply.existing);
        if !others.is_empty() && self.name.is_none() {
            list.notes.push(
                "if this is the list of another project, give it a name of its own: --name NAME".into(),
            );
        }
        list.left.extend(others);
        let List { notes, left, .. } = list;
        let report = Report { dry_run: self.how.dry_run, reply, notes, left, ..Report::default() };
        context.print(&report, Report::told)
    }
}

/// A refusal of one item, said of its task.
fn blame(error: Error, items: &[Item], sent: &dyn Fn(usize) -> usize) -> Error {
    let item = lines::refused(&error, items.len()).and_then(|item| items.get(sent(item)));
    let Some(item) = item else { return error };
    let sprint = plain(item.origin.as_ref().and_then(|origin| origin.get("sprint")));
    let taken = error.field("taken").is_some();
    let error = lines::at(error, &item.id);
    match (taken, item.id.rsplit_once('-')) {
        (true, Some((board, _))) => {
            error.hint(format!("put this sprint on another board: --board \"{sprint}={board}-imported\""))
        }
        _ => error,
    }
}

/// The file's tasks as items, and what could not be carried over.
#[derive(Debug, Default)]
struct List {
    items: Vec<Item>,
    notes: Vec<String>,
    left: Vec<Left>,
}

/// A task as the file names it.
type Name = (String, String);

impl List {
    fn of(
        file: PmFile,
        sprints: &BTreeSet<String>,
        renamed: &[(String, String)],
        name: Option<&str>,
    ) -> List {
        let mut list = List::default();
        let boards = list.boards(sprints, renamed);
        let order = Order::of(&file.tasks);
        list.tell_of_columns(&file.tasks);
        let mut at: HashMap<Name, usize> = HashMap::new();
        for row in file.tasks {
            let pm = (plain(row.get("sprint")), plain(row.get("task_num")));
            let board = &boards[&pm.0];
            let mut task = Task { id: format!("{board}-{}", pm.1), row, left: &mut list.left };
            let mut item = task.item(&order);
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

    /// Sprints that are good names keep them; the others get one that nobody has.
    fn boards(
        &mut self,
        sprints: &BTreeSet<String>,
        renamed: &[(String, String)],
    ) -> HashMap<String, String> {
        let mut boards: HashMap<String, String> = renamed.iter().cloned().collect();
        let kept =
            sprints.iter().filter(|name| is_board(name) && !renamed.iter().any(|(from, _)| from == *name));
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

    /// What has no place here is kept with each task, as it was.
    fn tell_of_columns(&mut self, rows: &[Row]) {
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
                    let what = format!("waits for {}, which is not there; it no longer does", shown(&on));
                    self.left.push(Left { task: self.items[this].id.clone(), what });
                }
                (None, _) => {
                    let what = format!("is not there, but is said to wait for {}", shown(&on));
                    self.left.push(Left { task: shown(&this), what });
                }
            }
        }
        for (item, what) in order::untangle(&mut self.items) {
            self.left.push(Left { task: self.items[item].id.clone(), what });
        }
        for item in &mut self.items {
            fit(item, &column, &mut self.left);
        }
    }
}

/// Sprints of two lists can be called alike; then a name tells them apart. An endless one is told by its board.
fn key(name: Option<&str>, sprint: &str, board: &str, n: &str) -> String {
    let list = name.map_or("pm".into(), |name| format!("pm:{name}"));
    let key = format!("{list}:{sprint}/{n}");
    if key.len() <= 128 { key } else { format!("{list}:{board}/{n}") }
}

/// The column that a field came from.
fn column(field: &str) -> &str {
    match field {
        "body" => "description",
        "parked" => "blocked_reason",
        "output" => "commit_hash",
        "tags" => "skills",
        other => other,
    }
}

/// Columns that an item has a place for, and those that are known and kept in its origin.
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
