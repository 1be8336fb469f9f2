//! The database of agent-swarm: agents, tasks, inboxes and channels.

mod agents;
mod conversation;
mod file;
mod report;
mod row;
mod send;
mod tasks;

use crate::{Target, batch, json_lines, target::call};
use agents::Agents;
use conversation::Conversation;
use fencepost::{
    Code, Error, Result,
    admin::import::{Dealt, MessageItem},
    task,
    task::import::Imported,
};
use futures_util::future::LocalBoxFuture;
pub use report::Report;
use row::Remarks;
use send::Sent;
use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
};
use tasks::{Numbers, Tasks};

#[derive(Debug)]
pub struct AgentSwarm {
    pub file: PathBuf,
    /// The board that gets the tasks.
    pub board: String,
    pub dry_run: bool,
}

impl AgentSwarm {
    pub fn import(self, target: &dyn Target) -> LocalBoxFuture<'_, Result<Report>> {
        Box::pin(self.send(target))
    }

    async fn send(self, target: &dyn Target) -> Result<Report> {
        let tables = file::read(&self.file)?;
        let rows = [tables.agents.len(), tables.tasks.len(), tables.messages.len()];
        let conversation_rows = [tables.channels.len(), tables.posts.len(), tables.reads.len()];
        let mut remarks = Remarks::default();
        let agents = Agents::of(tables.agents, &mut remarks);
        let numbers = numbers(target, &self.board).await?;
        let tasks = Tasks::of(tables.tasks, &agents, &self.board, &numbers, &mut remarks);
        let conversation =
            Conversation::of(tables.channels, tables.posts, tables.reads, &agents, &mut remarks);
        let done = self.tasks(target, &tasks).await?;
        // A task that existed already may have another id in the fleet.
        let existing: HashMap<&str, &str> =
            done.existing.iter().map(|task| (task.id.as_str(), task.task.as_str())).collect();
        let task_id = |row: &str| {
            let id = &tasks.item(row)?.id;
            Some(existing.get(id.as_str()).map_or_else(|| id.clone(), |task| (*task).to_owned()))
        };
        let messages = conversation::messages(tables.messages, &agents, task_id, &mut remarks);
        let sent = send::send(target, &agents, &conversation, &messages, self.dry_run).await?;

        let mut report = Report { dry_run: self.dry_run, board: self.board, ..Report::default() };
        report.other_tables = tables.others;
        let (new, existing) =
            Sent::rows(&sent.agents, agents.items.iter().map(|(id, item)| (id, &item.name)));
        report.add(file::AGENTS, rows[0], &new, &existing, &remarks);
        let (new, existing) = of_tasks(&tasks, &done);
        report.add(file::TASKS, rows[1], &new, &existing, &remarks);
        let (new_messages, existing) =
            Sent::rows(&sent.messages, messages.iter().map(|item| (&item.id, &item.id)));
        report.add(file::MESSAGES, rows[2], &new_messages, &existing, &remarks);
        let (new, existing) =
            Sent::rows(&sent.channels, conversation.channels.iter().map(|(id, item)| (id, &item.name)));
        report.add(file::CHANNELS, conversation_rows[0], &new, &existing, &remarks);
        let (new, existing) =
            Sent::rows(&sent.posts, conversation.posts.iter().map(|item| (&item.id, &item.id)));
        report.add(file::POSTS, conversation_rows[1], &new, &existing, &remarks);
        let cursors: Vec<_> = conversation
            .cursors
            .iter()
            .map(|(id, item)| (id, format!("{}/{}", item.agent, item.channel)))
            .collect();
        let (new, existing) = Sent::rows(&sent.cursors, cursors.iter().map(|(id, name)| (*id, name)));
        report.add(file::READS, conversation_rows[2], &new, &existing, &remarks);
        report.notes = notes(remarks, &report);
        let dealt = |item: &&MessageItem| item.status != Dealt::Unread && new_messages.contains(&item.id);
        match messages.iter().filter(dealt).count() {
            0 => {}
            n => report.notes.push(format!(
                "{n} messages were finished before: their texts are in the events that completed them"
            )),
        }
        Ok(report)
    }

    async fn tasks(&self, target: &dyn Target, tasks: &Tasks) -> Result<Imported> {
        let locate = |error: Error, item: usize| {
            let is_taken = error.field("taken").is_some();
            let error = json_lines::prefixed(error, &format!("{}/{}", file::TASKS, tasks.rows[item]));
            match is_taken {
                true => error.hint("put them on a board of their own: --board NAME"),
                false => error,
            }
        };
        batch::tasks::send(target, &tasks.items, self.dry_run, &locate).await
    }
}

/// The notes on tables of which something was imported.
fn notes(remarks: Remarks, report: &Report) -> Vec<String> {
    let is_new = |name: &str| report.tables.iter().any(|table| table.table == name && table.imported > 0);
    let mut notes: Vec<String> = if is_new(file::TASKS) { remarks.notes } else { Vec::new() };
    for (table, columns) in remarks.dropped.iter().filter(|(table, _)| is_new(table)) {
        let columns: Vec<_> = columns.iter().map(|column| format!("`{column}`")).collect();
        notes.push(format!(
            "{table}: {} not imported, because the fleet records it by itself",
            columns.join(", ")
        ));
    }
    notes
}

/// The rows of tasks that are new, and of those that existed, with their differences.
fn of_tasks(tasks: &Tasks, done: &Imported) -> (HashSet<String>, Vec<(String, Vec<String>)>) {
    let sent = tasks.by_id();
    let row = |id: &String| Some(sent.get(id.as_str())?.0.clone());
    let new = done.imported.iter().filter_map(row).collect();
    let mut existing = Vec::new();
    for task in &done.existing {
        let Some((row, item)) = sent.get(task.id.as_str()) else { continue };
        let (here, status) = (task.status.as_str(), item.status());
        let mut differs = Vec::new();
        if here != status.as_str() {
            differs.push(format!("{} is {here} here, {} there", task.task, status.as_str()));
        }
        if task.title != item.title {
            differs.push(format!("{} has another title: {}", task.task, task.title));
        }
        existing.push(((*row).clone(), differs));
    }
    let gone = done.gone.iter().filter_map(row);
    existing.extend(gone.map(|row| (row, vec!["was imported before, finished and pruned".into()])));
    (new, existing)
}

/// The numbers of the board's tasks, by their keys. A task that exists keeps its number.
async fn numbers(target: &dyn Target, board: &str) -> Result<Numbers> {
    let (mut numbers, mut after) = (Numbers::new(), None);
    loop {
        let page = task::List { board: Some(board.into()), after, limit: Some(1000), ..Default::default() };
        let page = match call(target, page).await {
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
