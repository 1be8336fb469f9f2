//! A task as callers see it.

use super::{Now, Record, Status, by_ids};
use crate::{
    clock::Time,
    db::{Answers, Batch, Tx, by_keys},
    error::{Error, Result},
    ids::TaskId,
    ops::claim::{self, Checkpoint},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// A task. Long fields (`body` to `notes`) are filled in by add, claim and show.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Task {
    /// `auth-3`: the third task of board `auth`.
    pub id: String,
    pub board: String,
    pub title: String,
    pub status: Status,
    /// 0 to 100, higher first.
    pub priority: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creator: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// The completed task that this one does again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reopens: Option<String>,
    /// The task that does this one again. Only `show` fills it in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reopened_as: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assignee: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered_to: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejection_reason: Option<String>,
    /// The reason, if the task is parked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<String>,
    /// The task failed, and is retried after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_until: Option<Time>,
    /// The number of its dependencies that are not completed.
    pub waiting_on: i64,
    pub attempts: i64,
    pub max_attempts: i64,
    /// The reason for which the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// The claim, while a run holds the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<claim::Claim>,
    /// The last holder's lease expired, but expiry has not written that yet. The next claim or the server
    /// will; the task is already shown that way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lapsed: bool,
    pub created_at: Time,
    pub updated_at: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The acceptance criteria.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_when: Option<String>,
    /// The task's origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Its dependencies, with their outputs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<Dependency>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// The latest progress, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub progress: Vec<Progress>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

impl Default for Task {
    fn default() -> Self {
        Task {
            id: String::new(),
            board: String::new(),
            title: String::new(),
            status: Status::Unassigned,
            priority: super::PRIORITY,
            kind: None,
            tags: Vec::new(),
            source: None,
            creator: None,
            idempotency_key: None,
            reopens: None,
            reopened_as: None,
            assignee: None,
            offered_to: None,
            offered_at: None,
            accepted_at: None,
            rejection_reason: None,
            parked: None,
            delayed_until: None,
            waiting_on: 0,
            attempts: 0,
            max_attempts: super::MAX_ATTEMPTS,
            failure_reason: None,
            claim: None,
            lapsed: false,
            created_at: Time(0),
            updated_at: Time(0),
            finished_at: None,
            body: None,
            done_when: None,
            origin: None,
            output: None,
            after: Vec::new(),
            checkpoint: None,
            progress: Vec::new(),
            notes: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Dependency {
    pub id: String,
    pub title: String,
    pub status: Status,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Note {
    pub at: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Progress {
    pub at: Time,
    pub run: String,
    pub fence: i64,
    pub text: String,
}

const HISTORY: i64 = 200;

/// If something is due, the dependencies may be overdue, too.
async fn as_they_are(tx: &mut Tx<'_>, others: &mut [(usize, TaskId, Status)]) -> Result<()> {
    let open = others.iter().filter(|(_, _, status)| !status.is_finished()).map(|(_, id, _)| id.clone());
    let open: HashSet<TaskId> = open.collect();
    if open.is_empty() || !tx.is_due().await? {
        return Ok(());
    }
    let now = Now::read(tx).await?;
    let found = by_ids(tx, open.iter()).await?;
    let found: HashMap<TaskId, Status> =
        found.into_iter().map(|(id, task)| (id, now.of(task).status())).collect();
    for (_, id, status) in others {
        *status = found.get(id).copied().unwrap_or(*status);
    }
    Ok(())
}

/// Tasks with everything a worker needs.
pub(crate) async fn full(tx: &mut Tx<'_>, tasks: Vec<Record>) -> Result<Vec<Task>> {
    Ok(full_after(tx, Batch::new(), tasks).await?.1)
}

/// Like [`full`], in the same round trip as the statements of a batch. Also returns the batch's answers.
pub(crate) async fn full_after(
    tx: &mut Tx<'_>,
    mut batch: Batch,
    tasks: Vec<Record>,
) -> Result<(Answers, Vec<Task>)> {
    let keys: Vec<i64> = tasks.iter().map(|task| task.seq).collect();
    let docs = batch.add(by_keys!(
        read,
        keys.as_slice(),
        "select task, body, done_when, origin, output, checkpoint from task_doc where task",
        ""
    ));
    let dependencies = batch.add(by_keys!(
        read,
        keys.as_slice(),
        "select edge.task, other.board, other.n, other.title, other.status, task_doc.output
         from edge join task as other on other.seq = edge.depends_on
         left join task_doc on task_doc.task = other.seq and other.status = 'completed'
         where edge.task",
        "order by other.seq"
    ));
    let notes = batch.add(by_keys!(
        read,
        keys.as_slice(),
        "select task, kind, at, agent, run, fence, body from note where task",
        "order by id desc limit ?2",
        HISTORY * tasks.len() as i64
    ));
    let mut answers = tx.send(batch).await?;
    let at: HashMap<i64, usize> = tasks.iter().enumerate().map(|(i, task)| (task.seq, i)).collect();
    let mut views: Vec<Task> = tasks.into_iter().map(|task| task.view(tx.now)).collect();
    let json = |text: Option<String>| {
        text.map(|text| serde_json::from_str(&text)).transpose().map_err(Error::internal)
    };
    for row in answers.take(docs).rows {
        let view = &mut views[at[&row.get("task")?]];
        view.body = row.get("body")?;
        view.done_when = row.get("done_when")?;
        view.output = row.get("output")?;
        view.origin = json(row.get("origin")?)?;
        let checkpoint: Option<String> = row.get("checkpoint")?;
        view.checkpoint =
            checkpoint.map(|text| serde_json::from_str(&text)).transpose().map_err(Error::internal)?;
    }
    let dependencies = answers.take(dependencies).rows;
    let mut others = Vec::with_capacity(dependencies.len());
    for row in &dependencies {
        let id = TaskId { board: row.get("board")?, n: row.get("n")? };
        others.push((at[&row.get("task")?], id, Status::read(&row.get::<String>("status")?)?));
    }
    as_they_are(tx, &mut others).await?;
    for (row, (task, id, status)) in dependencies.iter().zip(others) {
        let (id, title, output) = (id.to_string(), row.get("title")?, row.get("output")?);
        views[task].after.push(Dependency { id, title, status, output });
    }
    for row in answers.take(notes).rows.iter().rev() {
        let view = &mut views[at[&row.get("task")?]];
        let kind: String = row.get("kind")?;
        if kind == "progress" {
            let run: Option<String> = row.get("run")?;
            let fence: Option<i64> = row.get("fence")?;
            view.progress.push(Progress {
                at: row.get("at")?,
                run: run.unwrap_or_default(),
                fence: fence.unwrap_or_default(),
                text: row.get("body")?,
            });
        } else {
            view.notes.push(Note { at: row.get("at")?, agent: row.get("agent")?, text: row.get("body")? });
        }
    }
    Ok((answers, views))
}
