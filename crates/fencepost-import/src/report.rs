//! The result of an import, for programs and for people.

use fencepost::task::import::{Existing, Imported, Item};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub(crate) dry_run: bool,
    #[serde(flatten)]
    pub(crate) reply: Imported,
    /// Items other than tasks, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) others: Vec<TypeCount>,
    /// Things that the importer turned into something else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
    /// Things that could not be carried over as they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) left: Vec<Omission>,
}

/// How many items of one type were imported.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TypeCount {
    #[serde(rename = "type")]
    pub kind: String,
    pub imported: usize,
    /// Items that the fleet had already. The import leaves them alone.
    pub existing: usize,
    /// Items that the fleet had already, with different content.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<Omission>,
}

/// A part of a task, or of another item, that could not be carried over as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Omission {
    pub task: String,
    pub what: String,
}

impl Report {
    /// The report as text for people.
    pub fn describe(&self) -> String {
        let mut lines = Vec::new();
        let has_tasks = !self.reply.imported.is_empty() || !self.reply.existing.is_empty();
        if has_tasks || self.others.is_empty() {
            lines.push(self.headline());
        }
        let mut say = |line: String| lines.push(line);
        let existing = self.reply.existing.len();
        if existing > 0 && !self.reply.imported.is_empty() {
            say(format!(
                "{existing} existed already and {} not changed",
                if existing == 1 { "was" } else { "were" }
            ));
        }
        if !self.reply.gone.is_empty() {
            let gone = first_few(&self.reply.gone);
            say(format!("left out, because imported before, finished and pruned: {gone}"));
        }
        let verb = if self.dry_run { "would import" } else { "imported" };
        let of = |count: fn(&TypeCount) -> usize| {
            counted(&mut self.others.iter().map(|kind| (kind.kind.as_str(), count(kind))))
        };
        if self.others.iter().any(|kind| kind.imported > 0) {
            say(format!("{verb} {}", of(|kind| kind.imported)));
        }
        if self.others.iter().any(|kind| kind.existing > 0) {
            say(format!("existed already, not changed: {}", of(|kind| kind.existing)));
        }
        let differs: Vec<&Omission> = self.others.iter().flat_map(|kind| &kind.differs).collect();
        if !differs.is_empty() {
            say("existed already, with different content:".into());
        }
        differs.iter().for_each(|item| say(format!("  {}  {}", item.task, item.what)));
        self.notes.iter().cloned().for_each(&mut say);
        if !self.left.is_empty() {
            say("not carried over unchanged:".into());
        }
        let width = self.left.iter().map(|item| item.task.len()).max().unwrap_or(0);
        self.left.iter().for_each(|item| say(format!("  {:<width$}  {}", item.task, item.what)));
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
            (0, 1) => "nothing to import: the task exists already".into(),
            (0, existing) => format!("nothing to import: all {existing} tasks exist already"),
            (1, _) => format!("{verb} 1 task: {}", boards.join(", ")),
            (new, _) => format!("{verb} {new} tasks: {}", boards.join(", ")),
        }
    }
}

/// Tasks that the fleet has under another title. They may be other tasks: two lists can use the same ids.
pub(crate) fn other_titles(items: &[Item], existing: &[Existing]) -> Vec<Omission> {
    let titles: BTreeMap<&str, &str> =
        items.iter().map(|item| (item.id.as_str(), item.title.as_str())).collect();
    let differs = existing.iter().filter(|task| titles.get(task.id.as_str()) != Some(&task.title.as_str()));
    let omission = |task: &Existing| {
        let known_as = if task.task == task.id { String::new() } else { format!(", as {}", task.task) };
        let what = format!("exists already{known_as}, with another title: {}", task.title);
        Omission { task: task.id.clone(), what }
    };
    differs.map(omission).collect()
}

/// `3 agents, 1 channel`: how many of each.
pub fn counted(kinds: &mut dyn Iterator<Item = (&str, usize)>) -> String {
    let counted = kinds.filter(|(_, count)| *count > 0).map(|(kind, count)| match (count, kind) {
        (1, kind) => format!("1 {kind}"),
        (count, "mailbox") => format!("{count} mailboxes"),
        (count, kind) => format!("{count} {kind}s"),
    });
    let all = counted.collect::<Vec<_>>().join(", ");
    if all.is_empty() { "nothing".into() } else { all }
}

/// The first ids of many.
fn first_few(ids: &[String]) -> String {
    const SHOWN: usize = 10;
    match ids.len().checked_sub(SHOWN) {
        None | Some(0) => ids.join(", "),
        Some(more) => format!("{} and {more} more", ids[..SHOWN].join(", ")),
    }
}
