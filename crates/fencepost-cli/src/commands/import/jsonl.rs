use super::{How, Imported, Kind, Left, Report, fleet, order, other_titles, send};
use crate::{
    context::Context,
    exported::{self, File, kinds},
    lines,
};
use clap::Args;
use fencepost::{
    Code, Error, Result, TaskId,
    admin::{self, export::SOURCE, import::Taken},
    task,
    task::import::Item,
};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    process::ExitCode,
};

/// Tasks as lines of JSON, or a fleet that fence export wrote
///
/// Each line without a `type` is an item of task/import: `id` and `title`, and where known `body`, `done_when`, `kind`,
/// `priority`, `tags`, `after`, `status` (unassigned, completed, failed or cancelled), `parked`, `failure_reason`, `output`,
/// `notes`, `progress`, `owner`, `source`, `origin`, `creator`, `max_attempts`, `created_at`, `finished_at`, `key`.
///
/// Lines with a `type` are what `fence export` writes: tasks, agents, channels, posts, cursors, routes, boards, mailboxes
/// and messages. What is there already is left alone, and the answer says how it differs. A dependency on a task that is
/// neither in the file nor here is left out, and listed. It takes an admin's key where the fleet asks for one.
///
/// Examples:
///   fence import jsonl tasks.jsonl
///   jq -c '.[] | {id: "web-\(.number)", title, body}' issues.json | fence import jsonl -
///   fence import jsonl fleet.jsonl --dry-run
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Jsonl {
    /// The file, or - for standard input
    file: String,
    #[command(flatten)]
    how: How,
}

impl Jsonl {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let mut file = exported::read(&lines::text(&self.file)?)?;
        if file.tasks.items.is_empty() && file.numbers.is_empty() && !file.is_export {
            return Err(lines::empty(&self.file));
        }
        self.rename(&mut file)?;
        let mut left = if file.is_export { mend(context, &mut file.tasks.items).await? } else { Vec::new() };
        let has_others = !file.numbers.is_empty() || file.rest.floor.is_some();
        // A task's number is the most likely thing not to fit: try the tasks first, so that nothing else is imported then.
        if has_others && !self.how.dry_run {
            tasks(context, &file, true).await?;
        }
        let others =
            if has_others { others(context, &mut file, self.how.dry_run).await? } else { Vec::new() };
        let reply = tasks(context, &file, self.how.dry_run).await?;
        let new: HashSet<&String> = reply.imported.iter().collect();
        left.retain(|left| new.contains(&left.task));
        left.extend(other_titles(&file.tasks.items, &reply.existing));
        let report = Report { dry_run: self.how.dry_run, reply, others, left, ..Report::default() };
        context.print(&report, Report::told)
    }

    fn rename(&self, file: &mut File) -> Result<()> {
        let ids = file.tasks.items.iter().flat_map(|item| std::iter::once(&item.id).chain(&item.after));
        let boards = ids.filter_map(|id| Some(id.parse::<TaskId>().ok()?.board));
        let boards: BTreeSet<String> =
            boards.chain(file.rest.boards.iter().map(|board| board.name.clone())).collect();
        self.how.check("board", &boards)?;
        for item in &mut file.tasks.items {
            let id = renamed(&item.id, &self.how.board);
            // On another board it is another task, and that one may be in this fleet as well.
            if let Some(key) =
                item.key.as_mut().filter(|key| key.starts_with(&format!("{SOURCE}:{}@", item.id)))
            {
                *key = key.replacen(&item.id, &id, 1);
            }
            item.id = id;
            item.after.iter_mut().for_each(|id| *id = renamed(id, &self.how.board));
        }
        for board in &mut file.rest.boards {
            if let Some((_, to)) = self.how.board.iter().find(|(from, _)| *from == board.name) {
                board.name.clone_from(to);
            }
        }
        Ok(())
    }
}

/// The id on the board that its own was renamed to.
fn renamed(id: &str, boards: &[(String, String)]) -> String {
    let Ok(task) = id.parse::<TaskId>() else { return id.into() };
    match boards.iter().find(|(from, _)| *from == task.board) {
        Some((_, to)) => TaskId { board: to.clone(), ..task }.to_string(),
        None => id.into(),
    }
}

async fn tasks(context: &Context, file: &File, dry_run: bool) -> Result<Imported> {
    let blame = |error, sent: &dyn Fn(usize) -> usize| file.tasks.blame(error, sent);
    match file.tasks.items.is_empty() {
        true => Ok(Imported::default()),
        false => send(context, &file.tasks.items, dry_run, blame).await,
    }
}

/// An export of a fleet that others change meanwhile, or of some of its boards, may name tasks that are not in it, and
/// dependencies that were turned round between two pages.
async fn mend(context: &Context, items: &mut [Item]) -> Result<Vec<Left>> {
    let given: HashSet<String> = items.iter().map(|item| item.id.clone()).collect();
    let elsewhere: BTreeSet<String> =
        items.iter().flat_map(|item| &item.after).filter(|id| !given.contains(*id)).cloned().collect();
    let mut missing = HashSet::new();
    for id in elsewhere {
        match context.call(task::Show { task: id.clone() }).await {
            Err(e) if e.code() == Code::NotFound => drop(missing.insert(id)),
            shown => drop(shown?),
        }
    }
    let mut left = Vec::new();
    for item in items.iter_mut() {
        for gone in item.after.iter().filter(|id| missing.contains(*id)) {
            let what = format!("no longer waits for {gone}, which is neither in the file nor here");
            left.push(Left { task: item.id.clone(), what });
        }
        item.after.retain(|id| !missing.contains(id));
    }
    for (item, what) in order::untangle(items) {
        left.push(Left { task: items[item].id.clone(), what });
    }
    Ok(left)
}

/// Everything but the tasks.
async fn others(context: &Context, file: &mut File, dry_run: bool) -> Result<Vec<Kind>> {
    file.rest.source = SOURCE.into();
    file.rest.dry_run = dry_run;
    let blame = |error: Error, list: &'static str, item: usize| match file.numbers.get(list) {
        Some(numbers) => lines::on(error, numbers[item]),
        None => error,
    };
    let replies = fleet::send(context, &file.rest, blame).await?;
    let mut others = Vec::new();
    macro_rules! tell {
        ($list:ident, $kind:literal) => {
            if !file.rest.$list.is_empty() {
                others.push(tally($kind, file.rest.$list.len(), &replies, |reply| &reply.$list));
            }
        };
    }
    kinds!(tell);
    Ok(others)
}

/// Items that were sent with several calls (how far posts were read) count as new if any of the calls moved them.
fn tally(
    kind: &str,
    sent: usize,
    replies: &[admin::import::Imported],
    of: fn(&admin::import::Imported) -> &Taken,
) -> Kind {
    let several = matches!(kind, "cursor" | "channel" | "mailbox");
    let new: HashSet<&String> = replies.iter().flat_map(|reply| &of(reply).imported).collect();
    let count = replies.iter().map(|reply| of(reply).imported.len()).sum();
    let imported = if several { new.len() } else { count };
    let there = replies.iter().flat_map(|reply| &of(reply).existing);
    let differs: HashMap<&String, &Vec<String>> = there
        .filter(|there| !(there.differs.is_empty() || several && new.contains(&there.id)))
        .map(|there| (&there.id, &there.differs))
        .collect();
    let mut differs: Vec<Left> = differs
        .into_iter()
        .map(|(id, differs)| Left { task: format!("{kind} {id}"), what: differs.join("; ") })
        .collect();
    differs.sort_by(|a, b| a.task.cmp(&b.task));
    Kind { kind: kind.into(), imported, existing: sent.saturating_sub(imported), differs }
}
