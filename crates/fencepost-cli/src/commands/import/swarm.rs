mod calls;
mod cells;
mod file;
mod people;
mod report;
mod talk;
mod tasks;

use super::{Imported, is_board, send};
use crate::{context::Context, lines};
use calls::Brought;
use cells::Told;
use clap::Args;
use fencepost::{
    Code, Error, Result,
    admin::import::{Dealt, MessageItem},
    task,
};
use people::People;
use report::Report;
use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    process::ExitCode,
};
use talk::Talk;
use tasks::{Numbers, Tasks};

/// An agent-swarm database: agents, tasks, inboxes and channels
///
/// What somebody was at when agent-swarm stopped is free again: tasks in progress are assigned, offers under review are
/// offered, messages being processed are unread. Leads are told of what was finished and not told of there. The file is
/// only read. What cannot be carried over is listed, row by row, and the rest is imported. Stop agent-swarm first; if
/// it went on, importing again brings what is new.
///
/// Examples:
///   fence import agent-swarm agent-swarm-db.sqlite --dry-run
///   fence import agent-swarm agent-swarm-db.sqlite --board work
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Swarm {
    /// Its database, such as agent-swarm-db.sqlite
    file: PathBuf,
    /// Say what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// The board that the tasks are put on
    #[arg(long, default_value = "swarm", value_parser = board)]
    board: String,
}

fn board(name: &str) -> Result<String, String> {
    match is_board(name) {
        true => Ok(name.into()),
        false => Err(format!("`{name}` is not a board's name: letters, digits, `.`, `_` and `-`")),
    }
}

impl Swarm {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let tables = file::read(&self.file)?;
        let rows = [tables.agents.len(), tables.tasks.len(), tables.messages.len()];
        let talked = [tables.channels.len(), tables.posts.len(), tables.reads.len()];
        let mut told = Told::default();
        let people = People::of(tables.agents, &mut told);
        let numbers = numbers(context, &self.board).await?;
        let tasks = Tasks::of(tables.tasks, &people, &self.board, &numbers, &mut told);
        let talk = Talk::of(tables.channels, tables.posts, tables.reads, &people, &mut told);
        let done = self.tasks(context, &tasks).await?;
        // What a task is called here; one that was there may be called otherwise.
        let there: HashMap<&str, &str> =
            done.existing.iter().map(|there| (there.id.as_str(), there.task.as_str())).collect();
        let called = |row: &str| {
            let id = &tasks.item(row)?.id;
            Some(there.get(id.as_str()).map_or_else(|| id.clone(), |task| (*task).to_owned()))
        };
        let messages = talk::messages(tables.messages, &people, called, &mut told);
        let brought = calls::bring(context, &people, &talk, &messages, self.dry_run).await?;

        let mut report = Report { dry_run: self.dry_run, board: self.board, ..Report::default() };
        report.other_tables = tables.others;
        let (new, there) =
            Brought::rows(&brought.agents, people.agents.iter().map(|(id, item)| (id, &item.name)));
        report.table(file::AGENTS, rows[0], &new, &there, &told);
        let (new, there) = of_tasks(&tasks, &done);
        report.table(file::TASKS, rows[1], &new, &there, &told);
        let (new_messages, there) =
            Brought::rows(&brought.messages, messages.iter().map(|item| (&item.id, &item.id)));
        report.table(file::MESSAGES, rows[2], &new_messages, &there, &told);
        let (new, there) =
            Brought::rows(&brought.channels, talk.channels.iter().map(|(id, item)| (id, &item.name)));
        report.table(file::CHANNELS, talked[0], &new, &there, &told);
        let (new, there) = Brought::rows(&brought.posts, talk.posts.iter().map(|item| (&item.id, &item.id)));
        report.table(file::POSTS, talked[1], &new, &there, &told);
        let cursors: Vec<_> =
            talk.cursors.iter().map(|(id, item)| (id, format!("{}/{}", item.agent, item.channel))).collect();
        let (new, there) = Brought::rows(&brought.cursors, cursors.iter().map(|(id, name)| (*id, name)));
        report.table(file::READS, talked[2], &new, &there, &told);
        report.notes = notes(told, &report);
        let dealt = |item: &&MessageItem| item.status != Dealt::Unread && new_messages.contains(&item.id);
        match messages.iter().filter(dealt).count() {
            0 => {}
            n => report.notes.push(format!(
                "{n} messages were dealt with: what they said is in the events that completed them"
            )),
        }
        context.print(&report, Report::told)
    }

    async fn tasks(&self, context: &Context, tasks: &Tasks) -> Result<Imported> {
        if tasks.items.is_empty() {
            return Ok(Imported::default());
        }
        let blame = |error: Error, sent: &dyn Fn(usize) -> usize| {
            let item = lines::refused(&error, tasks.items.len()).map(sent);
            let Some(row) = item.and_then(|item| tasks.rows.get(item)) else { return error };
            let taken = error.field("taken").is_some();
            let error = lines::at(error, &format!("{}/{row}", file::TASKS));
            match taken {
                true => error.hint("put them on a board of their own: --board NAME"),
                false => error,
            }
        };
        send(context, &tasks.items, self.dry_run, blame).await
    }
}

/// What is only worth saying if something is new.
fn notes(told: Told, report: &Report) -> Vec<String> {
    let is_new = |name: &str| report.tables.iter().any(|table| table.table == name && table.imported > 0);
    let mut notes: Vec<String> = if is_new(file::TASKS) { told.notes } else { Vec::new() };
    for (table, columns) in told.useless.iter().filter(|(table, _)| is_new(table)) {
        let columns: Vec<_> = columns.iter().map(|column| format!("`{column}`")).collect();
        notes.push(format!("{table}: {} not kept, what happens here says it anew", columns.join(", ")));
    }
    notes
}

/// The rows of tasks that are new, and of those that were there, with what is another way here.
fn of_tasks(tasks: &Tasks, done: &Imported) -> (HashSet<String>, Vec<(String, Vec<String>)>) {
    let sent = tasks.by_id();
    let row = |id: &String| Some(sent.get(id.as_str())?.0.clone());
    let new = done.imported.iter().filter_map(row).collect();
    let mut there = Vec::new();
    for existing in &done.existing {
        let Some((row, item)) = sent.get(existing.id.as_str()) else { continue };
        let (here, status) = (existing.status.as_str(), item.status());
        let mut differs = Vec::new();
        if here != status.as_str() {
            differs.push(format!("{} is {here} here, {} there", existing.task, status.as_str()));
        }
        if existing.title != item.title {
            differs.push(format!("{} has another title: {}", existing.task, existing.title));
        }
        there.push(((*row).clone(), differs));
    }
    let gone = done.gone.iter().filter_map(row);
    there.extend(gone.map(|row| (row, vec!["was imported before, finished and pruned".into()])));
    (new, there)
}

/// The numbers that the board's tasks have, by their keys: what is there keeps its own.
async fn numbers(context: &Context, board: &str) -> Result<Numbers> {
    let (mut numbers, mut after) = (Numbers::new(), None);
    loop {
        let page = task::List { board: Some(board.into()), after, limit: Some(1000), ..Default::default() };
        let page = match context.call(page).await {
            Err(e) if e.code() == Code::NotFound => return Ok(numbers),
            page => page?,
        };
        for task in &page.tasks {
            let id: fencepost::TaskId =
                task.id.parse().map_err(|problem: String| Error::new(Code::Internal, problem))?;
            numbers.insert(task.idempotency_key.clone().unwrap_or_else(|| task.id.clone()), id.n);
        }
        after = page.tasks.last().map(|task| task.id.clone());
        if !page.more {
            return Ok(numbers);
        }
    }
}
