//! The history that an imported task brings along.

use super::{CheckpointItem, Item, Line, resource};
use crate::{
    clock::Time,
    error::Result,
    ids::TaskId,
    log::Event,
    ops::task::{Status, plan},
};
use serde_json::{Value, json};

/// The parts of an item that a newly added task does not have.
pub(super) struct Life {
    pub status: Status,
    notify: bool,
    offered_at: Option<Time>,
    accepted_at: Option<Time>,
    rejection_reason: Option<String>,
    parked: Option<String>,
    delayed_until: Option<Time>,
    attempts: i64,
    checkpoint: Option<CheckpointItem>,
    failure_reason: Option<String>,
    output: Option<String>,
    notes: Vec<Line>,
    progress: Vec<Line>,
    owner: Option<String>,
    created_at: Option<Time>,
    finished_at: Option<Time>,
}

impl Life {
    /// No task is finished before it was created, and no time is in the future.
    pub fn fill(&self, row: &mut Value, now: Time) -> Result<()> {
        let finished_at = self.status.is_finished().then(|| self.finished_at.map_or(now, |at| at.min(now)));
        let latest = finished_at.unwrap_or(now);
        row["created_at"] = self.created_at.map_or(latest, |at| at.min(latest)).0.into();
        row["finished_at"] = finished_at.map(|at| at.0).into();
        let past = |at: Option<Time>| at.map(|at| at.min(now).0);
        if let Some(at) = past(self.offered_at) {
            row["offered_at"] = at.into();
        }
        row["accepted_at"] = past(self.accepted_at).into();
        row["rejection_reason"] = self.rejection_reason.as_deref().into();
        row["told"] = i64::from(self.status.is_finished() && !self.notify).into();
        row["parked"] = self.parked.as_deref().into();
        row["failure_reason"] = self.failure_reason.as_deref().into();
        row["delayed_until"] = self.delayed_until.filter(|until| *until > now).map(|until| until.0).into();
        row["attempts"] = self.attempts.into();
        row["output"] = self.output.as_deref().into();
        if let Some(checkpoint) = &self.checkpoint {
            row["checkpoint_n"] = checkpoint.ordinal.into();
            row["checkpoint"] = checkpoint.stored()?.into();
        }
        Ok(())
    }

    pub fn event(&self, id: &TaskId, key: Option<&str>) -> Event {
        let mut details = json!({ "key": key });
        for (name, value) in [("owner", &self.owner), ("parked", &self.parked)] {
            if let Some(value) = value {
                details[name] = value.as_str().into();
            }
        }
        Event { to: Some(self.status.as_str()), ..Event::new("task.imported", resource(id)) }.details(details)
    }

    /// A text without author and time gets the importer and now.
    pub fn notes<'a>(
        &'a self,
        id: &'a TaskId,
        now: Time,
        caller: Option<&'a str>,
    ) -> impl Iterator<Item = Value> + 'a {
        let progress = self.progress.iter().map(|line| ("progress", line));
        let notes = self.notes.iter().map(|line| ("note", line));
        progress.chain(notes).map(move |(kind, line)| {
            let (agent, at) = match line {
                Line::Text(_) => (caller, now),
                Line::Full(line) => (line.agent.as_deref(), line.at.map_or(now, |at| at.min(now))),
            };
            json!({
                "board": id.board, "n": id.n, "kind": kind, "text": line.text(), "agent": agent, "at": at.0,
            })
        })
    }
}

impl Item {
    /// Splits an item into the fields of any task and its history.
    pub(super) fn split(self) -> (plan::Item, Life) {
        let status = self.status();
        let item = plan::Item {
            key: Some(self.key.unwrap_or_else(|| format!("import:{}", self.id))),
            name: Some(self.id),
            title: self.title,
            body: self.body,
            done_when: self.done_when,
            kind: self.kind,
            priority: self.priority,
            tags: self.tags,
            source: self.source,
            origin: self.origin,
            creator: self.creator,
            to: self.to,
            offer: self.offer,
            after: self.after,
            max_attempts: self.max_attempts,
        };
        let life = Life {
            status,
            notify: self.notify,
            offered_at: self.offered_at,
            accepted_at: self.accepted_at,
            rejection_reason: self.rejection_reason,
            parked: self.parked,
            delayed_until: self.delayed_until,
            attempts: self.attempts,
            checkpoint: self.checkpoint,
            failure_reason: self.failure_reason,
            output: self.output,
            notes: self.notes,
            progress: self.progress,
            owner: self.owner,
            created_at: self.created_at,
            finished_at: self.finished_at,
        };
        (item, life)
    }
}
