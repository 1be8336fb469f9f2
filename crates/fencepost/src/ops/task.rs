//! Tasks: units of work with dependencies, on boards.
//!
//! An op loads the task's `Record` under its row lock, applies a pure rule, and saves the record with one update. The
//! update checks the fence, and the run's life where a claim is used or made. Each rule is in its verb's file.

mod new;
mod now;
mod phase;
mod record;
mod save;
mod state;
mod view;

pub use crate::ops::claim::Checkpoint;
use crate::{
    clock::{Millis, Time},
    db::{Batch, Stmt, Tx},
    engine::op::verbs,
    error::{Code, Error, Result},
    ids::TaskId,
    lease::Under,
    log::Event,
    params,
};
pub(crate) use now::{Now, overdue};
pub(crate) use phase::{Phase, Purpose};
pub(crate) use record::{
    Lock, Record, Was, add_locked, by_ids, columns, is_ready, load, load_locked, load_set, state, titles,
    unheld,
};
pub(crate) use save::{save, save_set};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use state::State;
pub(crate) use state::state_now;
pub use view::{Dependency, Note as NoteView, Progress as ProgressView, Task};
pub(crate) use view::{full, full_after};

verbs![
    add::Add,
    plan::Plan,
    import::Import,
    ready::Ready,
    claim::Claim,
    claim_many::ClaimMany,
    progress::Progress,
    checkpoint::SaveCheckpoint,
    done::Done,
    done_many::DoneMany,
    fail::Fail,
    show::Show,
    list::List,
    why::Why,
    wait::Wait,
    offer::Offer,
    assign::Assign,
    accept::Accept,
    reject::Reject,
    park::Park,
    unpark::Unpark,
    cancel::Cancel,
    retry::Retry,
    reopen::Reopen,
    edit::Edit,
    note::Note,
    depend::Depend,
    undepend::Undepend,
];
pub(crate) mod claimable;
pub(crate) mod lapse;
pub(crate) mod release;

pub const PRIORITY: i64 = 50;
pub const MAX_ATTEMPTS: i64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Any agent may claim it.
    Unassigned,
    /// Offered to one agent, which has not accepted or rejected it yet.
    Offered,
    /// Held by a run of the agent it is offered to, which decides.
    Reviewing,
    /// Assigned to an agent that has not claimed it yet.
    Pending,
    /// Held by a run that works on it.
    InProgress,
    Completed,
    Failed,
    Cancelled,
}

impl Status {
    pub const ALL: [Status; 8] = [
        Status::Unassigned,
        Status::Offered,
        Status::Reviewing,
        Status::Pending,
        Status::InProgress,
        Status::Completed,
        Status::Failed,
        Status::Cancelled,
    ];
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Unassigned => "unassigned",
            Status::Offered => "offered",
            Status::Reviewing => "reviewing",
            Status::Pending => "pending",
            Status::InProgress => "in_progress",
            Status::Completed => "completed",
            Status::Failed => "failed",
            Status::Cancelled => "cancelled",
        }
    }
    pub(crate) fn read(text: &str) -> Result<Self> {
        let status = Status::ALL.into_iter().find(|status| status.as_str() == text);
        status.ok_or_else(|| Error::internal("a task has a status that this fence does not know"))
    }
    pub fn is_finished(self) -> bool {
        matches!(self, Status::Completed | Status::Failed | Status::Cancelled)
    }
}

/// The reply of a verb: the task as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    pub task: Task,
}

pub(crate) fn not_found(id: &TaskId) -> Error {
    Error::new(Code::NotFound, format!("there is no task `{id}`"))
        .hint("fence list shows the tasks there are")
}

/// The steps of every verb that needs no token: load, apply the rule, save, log. A dead holder's claim is
/// given back first, so that it causes no refusal. Repeating the request changes nothing.
pub(crate) async fn change(
    tx: &mut Tx<'_>,
    task: &str,
    kind: &'static str,
    details: Option<serde_json::Value>,
    rule: impl FnOnce(&mut Record, Time) -> Result<()> + Send,
) -> Result<Changed> {
    change_under(tx, task, kind, details, Under::NoClaim, rule).await
}

/// Like [`change`], for a rule that may use the claim that the task is held under.
pub(crate) async fn change_under(
    tx: &mut Tx<'_>,
    task: &str,
    kind: &'static str,
    details: Option<serde_json::Value>,
    under: Under,
    rule: impl FnOnce(&mut Record, Time) -> Result<()> + Send,
) -> Result<Changed> {
    let id = TaskId::check("task", task)?;
    let found = load_locked(tx, &id).await?.ok_or_else(|| not_found(&id))?;
    if tx.opening.is_repeat(kind, Some(&found.resource()))? {
        return Ok(Changed { task: found.view(tx.now) });
    }
    let mut events = Vec::new();
    let mut task = found.clone();
    if task.is_lost(tx.now) {
        events.push(lapse::lapse(&mut task, tx.now));
    }
    let before = task.clone();
    rule(&mut task, tx.now)?;
    task.updated_at = tx.now;
    let held = before.hold();
    // The run and the fence are those of the claim, if the task was held. The agent is the caller, not the holder.
    events.push(Event {
        details,
        agent: None,
        run: held.map(|hold| hold.run.clone()),
        fence: held.map(|hold| hold.fence),
        ..task.event(kind, before.status())
    });
    let mut batch = Batch::new();
    let saved = save(&mut batch, &found.was(), &task, under, tx.now);
    batch.add(Event::insert_many(tx, events)?);
    if tx.send(batch).await?.affected(saved) == 0 {
        return Err(Error::new(Code::LeaseExpired, format!("the claim on `{id}` ended at this moment")));
    }
    Ok(Changed { task: task.view(tx.now) })
}

/// Makes tasks ready whose delay is over. One batch.
pub(crate) async fn end_delays(tx: &mut Tx<'_>) -> Result<u64> {
    let due = tx
        .query(
            "select seq, board, n, status, assignee, offered_to from task
             where delayed_until <= ?1 order by delayed_until limit ?2 /*pg for update skip locked*/",
            params![tx.now, crate::lease::expiry::ITEMS],
        )
        .await?;
    if due.is_empty() {
        return Ok(0);
    }
    // No claim is read: a run may hold a task for review while the task is delayed.
    let due = due.iter().map(record::Brief::read).collect::<Result<Vec<_>>>()?;
    let events = due.iter().map(|task| task.event("task.due")).collect();
    let events = Event::insert_many(tx, events)?;
    let keys = due.iter().map(|task| task.seq);
    let woken = "update task set delayed_until = null
                 where seq in (select cast(value ->> 'k' as bigint) from json_each(?1))";
    let keys = crate::db::key_set(keys);
    let woken = Stmt::write(woken, params![keys.clone()]);
    tx.send(Batch::from([woken, save::sync_tags(keys), events])).await?;
    Ok(due.len() as u64)
}

/// Backoff after the nth failed attempt: 10 s, 20 s, 40 s, … at most 10 minutes.
pub(crate) fn backoff(attempts: i64) -> Millis {
    let doublings = u32::try_from((attempts - 1).clamp(0, 10)).unwrap_or(0);
    Millis((10_000_i64 << doublings).min(600_000))
}
