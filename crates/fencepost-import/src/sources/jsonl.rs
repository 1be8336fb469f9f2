//! Lines of JSON: tasks, or a fleet that [`export`] wrote.

mod export;
pub(crate) mod format;

use crate::{
    Renaming, Report, Target,
    batch::{self, tasks::break_cycles},
    boards,
    item_types::for_each_type,
    json_lines,
    report::{Omission, TypeCount, other_titles},
    target::call,
};
pub use export::export;
use fencepost::{
    Code, Error, Result, TaskId,
    admin::{export::SOURCE, import},
    task,
    task::import::{Imported, Item},
};
use format::File;
use futures_util::future::LocalBoxFuture;
use std::collections::{BTreeSet, HashMap, HashSet};

#[derive(Debug)]
pub struct Jsonl {
    /// The name of the file, for errors.
    pub file: String,
    pub text: String,
    pub boards: Vec<Renaming>,
    pub dry_run: bool,
}

impl Jsonl {
    pub fn import(self, target: &dyn Target) -> LocalBoxFuture<'_, Result<Report>> {
        Box::pin(self.send(target))
    }

    async fn send(self, target: &dyn Target) -> Result<Report> {
        let mut file = format::read(&self.file, &self.text)?;
        if file.tasks.items.is_empty() && file.numbers.is_empty() && !file.is_export {
            return Err(json_lines::no_tasks(&self.file));
        }
        self.rename(&mut file)?;
        let mut left = if file.is_export { repair(target, &mut file.tasks.items).await? } else { Vec::new() };
        let has_others = !file.numbers.is_empty() || file.others.floor.is_some();
        // A task's number is the most likely thing to be refused. Trying the tasks first keeps everything else out then.
        if has_others && !self.dry_run {
            tasks(target, &file, true).await?;
        }
        let others = if has_others { others(target, &mut file, self.dry_run).await? } else { Vec::new() };
        let reply = tasks(target, &file, self.dry_run).await?;
        let new: HashSet<&String> = reply.imported.iter().collect();
        left.retain(|left| new.contains(&left.task));
        left.extend(other_titles(&file.tasks.items, &reply.existing));
        Ok(Report { dry_run: self.dry_run, reply, others, left, ..Report::default() })
    }

    fn rename(&self, file: &mut File) -> Result<()> {
        let ids = file.tasks.items.iter().flat_map(|item| std::iter::once(&item.id).chain(&item.after));
        let boards = ids.filter_map(|id| Some(id.parse::<TaskId>().ok()?.board));
        let boards: BTreeSet<String> =
            boards.chain(file.others.boards.iter().map(|board| board.name.clone())).collect();
        boards::check(&self.boards, "board", &boards)?;
        for item in &mut file.tasks.items {
            let id = renamed(&item.id, &self.boards);
            // On another board it is another task. The original may be in the same fleet, under the original key.
            if let Some(key) =
                item.key.as_mut().filter(|key| key.starts_with(&format!("{SOURCE}:{}@", item.id)))
            {
                *key = key.replacen(&item.id, &id, 1);
            }
            item.id = id;
            item.after.iter_mut().for_each(|id| *id = renamed(id, &self.boards));
        }
        for board in &mut file.others.boards {
            if let Some(to) = boards::renamed(&self.boards, &board.name) {
                board.name = to.into();
            }
        }
        Ok(())
    }
}

/// The id of a task, on the board that its board was renamed to.
fn renamed(id: &str, renamings: &[Renaming]) -> String {
    let Ok(task) = id.parse::<TaskId>() else { return id.into() };
    match boards::renamed(renamings, &task.board) {
        Some(to) => TaskId { board: to.into(), ..task }.to_string(),
        None => id.into(),
    }
}

async fn tasks(target: &dyn Target, file: &File, dry_run: bool) -> Result<Imported> {
    let locate = |error, item| file.tasks.locate_item(error, item);
    batch::tasks::send(target, &file.tasks.items, dry_run, &locate).await
}

/// Drops dependencies on tasks that are neither in the file nor in the fleet, and those that form a cycle. An export has
/// such dependencies if it has only some boards, or if somebody changed them between two of its pages.
async fn repair(target: &dyn Target, items: &mut [Item]) -> Result<Vec<Omission>> {
    let in_file: HashSet<String> = items.iter().map(|item| item.id.clone()).collect();
    let elsewhere: BTreeSet<String> =
        items.iter().flat_map(|item| &item.after).filter(|id| !in_file.contains(*id)).cloned().collect();
    let mut missing = HashSet::new();
    for id in elsewhere {
        match call(target, task::Show { task: id.clone() }).await {
            Err(e) if e.code() == Code::NotFound => drop(missing.insert(id)),
            shown => drop(shown?),
        }
    }
    let mut left = Vec::new();
    for item in items.iter_mut() {
        for gone in item.after.iter().filter(|id| missing.contains(*id)) {
            let what = format!("no longer waits for {gone}, which is neither in the file nor in the fleet");
            left.push(Omission { task: item.id.clone(), what });
        }
        item.after.retain(|id| !missing.contains(id));
    }
    for (item, what) in break_cycles(items) {
        left.push(Omission { task: items[item].id.clone(), what });
    }
    Ok(left)
}

/// Imports everything but the tasks.
async fn others(target: &dyn Target, file: &mut File, dry_run: bool) -> Result<Vec<TypeCount>> {
    file.others.source = SOURCE.into();
    file.others.dry_run = dry_run;
    let locate = |error: Error, list: &'static str, item: usize| match file.numbers.get(list) {
        Some(numbers) => json_lines::on_line(error, numbers[item]),
        None => error,
    };
    let replies = batch::others::send(target, &file.others, &locate).await?;
    let mut counts = Vec::new();
    macro_rules! count {
        ($list:ident, $kind:literal) => {
            if !file.others.$list.is_empty() {
                counts.push(count($kind, file.others.$list.len(), &replies, |reply| &reply.$list));
            }
        };
    }
    for_each_type!(count);
    Ok(counts)
}

/// Items that went with several calls, such as cursors, count as imported if any of the calls changed them.
fn count(
    kind: &str,
    sent: usize,
    replies: &[import::Imported],
    of: fn(&import::Imported) -> &import::Taken,
) -> TypeCount {
    let several = matches!(kind, "cursor" | "channel" | "mailbox");
    let new: HashSet<&String> = replies.iter().flat_map(|reply| &of(reply).imported).collect();
    let count = replies.iter().map(|reply| of(reply).imported.len()).sum();
    let imported = if several { new.len() } else { count };
    let existing = replies.iter().flat_map(|reply| &of(reply).existing);
    let differs: HashMap<&String, &Vec<String>> = existing
        .filter(|item| !(item.differs.is_empty() || several && new.contains(&item.id)))
        .map(|item| (&item.id, &item.differs))
        .collect();
    let mut differs: Vec<Omission> = differs
        .into_iter()
        .map(|(id, differs)| Omission { task: format!("{kind} {id}"), what: differs.join("; ") })
        .collect();
    differs.sort_by(|a, b| a.task.cmp(&b.task));
    TypeCount { kind: kind.into(), imported, existing: sent.saturating_sub(imported), differs }
}
