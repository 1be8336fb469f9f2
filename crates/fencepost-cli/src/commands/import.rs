mod file;
mod fit;
mod fleet;
mod jsonl;
mod order;
mod pm;
mod pm_file;
mod pm_order;
mod pm_task;
mod swarm;
mod words;

use super::counted;
use crate::{context::Context, progress::Progress};
use clap::{Args, Subcommand};
use fencepost::{
    Code, Error, Result,
    task::import::{self, Existing, Imported, Item},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
};

/// Bring tasks, agents and their conversation along from elsewhere
///
/// Importing again changes nothing: what is there already is left alone. Whoever had something elsewhere holds nothing
/// here; the event of the import says who it was.
///
/// Examples:
///   fence import pm .pm/tasks.db --dry-run
///   fence import agent-swarm agent-swarm-db.sqlite --dry-run
///   fence import jsonl tasks.jsonl
///   fence import jsonl fleet.jsonl
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Import {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, Subcommand)]
enum From {
    Pm(pm::Pm),
    AgentSwarm(swarm::Swarm),
    Jsonl(jsonl::Jsonl),
}

/// What every import can be told.
#[derive(Debug, Args)]
struct How {
    /// Say what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Put what is of one board on another; may be given several times
    #[arg(long, value_name = "FROM=TO", value_parser = renaming)]
    board: Vec<(String, String)>,
}

impl How {
    /// What is to be renamed must be there: a typing error would put it where nobody looks.
    fn check(&self, what: &str, there: &BTreeSet<String>) -> Result<()> {
        let Some((unknown, _)) = self.board.iter().find(|(from, _)| !there.contains(from)) else {
            return Ok(());
        };
        let names: Vec<_> = there.iter().map(|name| format!("`{name}`")).collect();
        let hint = match names.is_empty() {
            true => "there are none: the file has no tasks".into(),
            false => format!("there are {}", names.join(", ")),
        };
        Err(Error::new(Code::Invalid, format!("there is no {what} `{unknown}`"))
            .with("field", "board")
            .hint(hint))
    }
}

/// A board's name has no `=`, so the last one parts them.
fn renaming(text: &str) -> Result<(String, String), String> {
    let (from, to) = text.rsplit_once('=').ok_or("not of the form FROM=TO")?;
    match is_board(to) {
        true => Ok((from.into(), to.into())),
        false => Err(format!("`{to}` is not a board's name: letters, digits, `.`, `_` and `-`")),
    }
}

fn is_board(name: &str) -> bool {
    format!("{name}-1").parse::<fencepost::TaskId>().is_ok()
}

impl Import {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        match self.from {
            From::Pm(command) => command.run(context).await,
            From::AgentSwarm(command) => command.run(context).await,
            From::Jsonl(command) => command.run(context).await,
        }
    }
}

/// What came of an import.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Report {
    dry_run: bool,
    #[serde(flatten)]
    reply: Imported,
    /// What came beside the tasks, by its type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    others: Vec<Kind>,
    /// What was turned into something else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    /// What could not be carried over as it was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left: Vec<Left>,
}

/// The result for the items of one type, tasks apart.
#[derive(Debug, Serialize, Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: String,
    imported: usize,
    /// What was there already, and was left alone.
    existing: usize,
    /// Items that were here already, with different content.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    differs: Vec<Left>,
}

/// Something that could not be carried over as it was, and the task it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Left {
    task: String,
    what: String,
}

impl Report {
    fn told(&self) -> String {
        let mut lines = Vec::new();
        let has_tasks = !self.reply.imported.is_empty() || !self.reply.existing.is_empty();
        if has_tasks || self.others.is_empty() {
            lines.push(self.headline());
        }
        let mut say = |line: String| lines.push(line);
        let there = self.reply.existing.len();
        if there > 0 && !self.reply.imported.is_empty() {
            say(format!("{there} {} there already and left alone", if there == 1 { "was" } else { "were" }));
        }
        if !self.reply.gone.is_empty() {
            let gone = few(&self.reply.gone);
            say(format!("imported before, finished and pruned, so left out: {gone}"));
        }
        let verb = if self.dry_run { "would import" } else { "imported" };
        let of = |count: fn(&Kind) -> usize| {
            counted(self.others.iter().map(|kind| (kind.kind.as_str(), count(kind))))
        };
        if self.others.iter().any(|kind| kind.imported > 0) {
            say(format!("{verb} {}", of(|kind| kind.imported)));
        }
        if self.others.iter().any(|kind| kind.existing > 0) {
            say(format!("there already and left alone: {}", of(|kind| kind.existing)));
        }
        let differs: Vec<&Left> = self.others.iter().flat_map(|kind| &kind.differs).collect();
        if !differs.is_empty() {
            say("already here, with different content:".into());
        }
        differs.iter().for_each(|left| say(format!("  {}  {}", left.task, left.what)));
        self.notes.iter().cloned().for_each(&mut say);
        if !self.left.is_empty() {
            say("not carried over as it was:".into());
        }
        let width = self.left.iter().map(|left| left.task.len()).max().unwrap_or(0);
        self.left.iter().for_each(|left| say(format!("  {:<width$}  {}", left.task, left.what)));
        lines.join("\n")
    }

    fn headline(&self) -> String {
        let mut boards: BTreeMap<&str, usize> = BTreeMap::new();
        for id in &self.reply.imported {
            *boards.entry(id.rsplit_once('-').map_or(id, |(board, _)| board)).or_default() += 1;
        }
        let boards: Vec<_> = boards.iter().map(|(board, count)| format!("{count} to {board}")).collect();
        let verb = if self.dry_run { "would import" } else { "imported" };
        match (self.reply.imported.len(), self.reply.existing.len()) {
            (0, 0) => "nothing to import".into(),
            (0, 1) => "nothing to import: the task is there already".into(),
            (0, there) => format!("nothing to import: all {there} tasks are there already"),
            (1, _) => format!("{verb} 1 task: {}", boards.join(", ")),
            (new, _) => format!("{verb} {new} tasks: {}", boards.join(", ")),
        }
    }
}

/// The first of many.
fn few(ids: &[String]) -> String {
    const SHOWN: usize = 10;
    match ids.len().checked_sub(SHOWN) {
        None | Some(0) => ids.join(", "),
        Some(more) => format!("{} and {more} more", ids[..SHOWN].join(", ")),
    }
}

/// Sends the items, in as few calls as may be. `blame` says what a refusal of the item at this place means.
async fn send(
    context: &Context,
    items: &[Item],
    dry_run: bool,
    blame: impl Fn(Error, &dyn Fn(usize) -> usize) -> Error,
) -> Result<Imported> {
    let calls = order::calls(items).map_err(|error| blame(error, &|i| i))?;
    let mut sum = Imported::default();
    let mut progress = Progress::new(context.json());
    let mut sent = 0;
    for (n, call) in calls.iter().enumerate() {
        progress.show(|| format!("importing: {sent} of {} tasks", items.len()));
        let request = context.request().map(|id| if n == 0 { id } else { format!("{id}.{n}") });
        let op = import::Import { tasks: call.tasks(items), dry_run, request };
        let reply = context.call(op).await.map_err(|error| {
            let error = blame(error, &|i| call.item(i));
            if sum.imported.is_empty() { error } else { half_way(error, sum.imported.len(), dry_run) }
        })?;
        let own = |id: &str| call.brings(items, id);
        sum.imported.extend(reply.imported.into_iter().filter(|id| own(id)));
        sum.existing.extend(reply.existing.into_iter().filter(|there| own(&there.id)));
        sum.gone.extend(reply.gone.into_iter().filter(|id| own(id)));
        sent += call.own.len();
    }
    Ok(sum)
}

fn half_way(error: Error, imported: usize, dry_run: bool) -> Error {
    let said = error.hint_text().map(|hint| format!("; {hint}")).unwrap_or_default();
    match dry_run {
        true => error,
        false => {
            error.hint(format!("{imported} tasks before it were imported, and importing again goes on{said}"))
        }
    }
}

/// A task that goes by another title here may be another task: two lists can call theirs alike.
fn other_titles(items: &[Item], existing: &[Existing]) -> Vec<Left> {
    let titles: BTreeMap<&str, &str> =
        items.iter().map(|item| (item.id.as_str(), item.title.as_str())).collect();
    let differs =
        existing.iter().filter(|there| titles.get(there.id.as_str()) != Some(&there.title.as_str()));
    let left = |there: &Existing| {
        let at = if there.task == there.id { String::new() } else { format!(", as {}", there.task) };
        let what = format!("is there already{at}, with another title: {}", there.title);
        Left { task: there.id.clone(), what }
    };
    differs.map(left).collect()
}
