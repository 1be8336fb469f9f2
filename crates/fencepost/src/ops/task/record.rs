//! Reading a task's row. `save.rs` writes it.

use super::{Now, Phase, Status, Task, reopen::reopened};
use crate::{
    clock::Time,
    db::{Batch, Row, Slot, Stmt, Tx, Value, set},
    error::{Code, Error, Result},
    ids::{Resource, TaskId},
    lease::{Claim, ClaimState, Hold, Last, overdue::Item},
    log::Event,
    params,
    topic::Topic,
};
use std::collections::HashMap;

/// A task's row.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub seq: i64,
    pub id: TaskId,
    pub title: String,
    pub kind: Option<String>,
    pub priority: i64,
    pub tags: Vec<String>,
    pub source: Option<String>,
    pub creator: Option<String>,
    pub key: Option<String>,
    pub max_attempts: i64,
    pub created_at: Time,
    pub phase: Phase,
    pub assignee: Option<String>,
    pub offered_to: Option<String>,
    pub offered_at: Option<Time>,
    pub accepted_at: Option<Time>,
    pub rejection_reason: Option<String>,
    pub parked: Option<String>,
    pub delayed_until: Option<Time>,
    pub waiting_on: i64,
    pub attempts: i64,
    pub reviews: i64,
    pub lapsed: bool,
    pub fence: i64,
    pub delivery: i64,
    pub last: Option<Last>,
    pub failure_reason: Option<String>,
    pub updated_at: Time,
    /// The claim is lost, but expiry has not written that yet: this record is as expiry would write it.
    pub overdue: bool,
}

impl Item for Record {
    fn key(&self) -> i64 {
        self.seq
    }
}

macro_rules! state {
    () => {
        "select task.seq, task.board, task.n, task.title, task.kind, task.priority, task.tags, task.source,
           task.creator, task.idempotency_key, task.max_attempts, task.created_at, task.status, task.assignee,
           task.offered_to, task.offered_at, task.accepted_at, task.rejection_reason, task.parked,
           task.delayed_until, task.waiting_on, task.attempts, task.reviews, task.lapsed, task.fence,
           task.delivery, task.until_at, task.claimed_at, task.last_fence, task.last_verb, task.last_digest,
           task.failure_reason, task.updated_at, task.finished_at, "
    };
}
pub(crate) use state;

/// Tasks joined with the runs that hold them.
macro_rules! columns {
    ($rest:expr) => {
        concat!(
            $crate::ops::task::state!(),
            "run.key as run_key, run.name as run_name, run.agent as run_agent,
               run.expires_at as run_expires_at, run.ended_at as run_ended_at
             from task left join run on run.key = task.run ",
            $rest
        )
    };
}
pub(crate) use columns;

/// Tasks that nobody holds. Without a join the planner has no other order to choose.
macro_rules! unheld {
    ($rest:expr) => {
        concat!($crate::ops::task::state!(), "cast(null as bigint) as run_key ", $rest)
    };
}
pub(crate) use unheld;

/// Whether a task can be claimed now. [`Record::ready`] is the same rule in Rust; the column `ready` does
/// not know the time.
macro_rules! is_ready {
    ($now:literal) => {
        concat!(
            "task.status in ('unassigned', 'pending') and task.waiting_on = 0 and task.parked is null
             and (task.delayed_until is null or task.delayed_until <= ",
            $now,
            ")"
        )
    };
}
pub(crate) use is_ready;

/// A task as it was found: the values that the write checks, and that its event reports.
#[derive(Debug, Clone)]
pub(crate) struct Was {
    pub phase: Phase,
    pub fence: i64,
    pub ready: u8,
}

impl Record {
    pub fn read(mut row: Row) -> Result<Self> {
        let status = Status::read(&row.take::<String>("status")?)?;
        let tags: Option<String> = row.take("tags")?;
        let assignee: Option<String> = row.take("assignee")?;
        let updated_at: Time = row.take("updated_at")?;
        let finished_at: Option<Time> = row.take("finished_at")?;
        let hold = Hold::read(&mut row)?;
        Ok(Self {
            seq: row.take("seq")?,
            id: TaskId { board: row.take("board")?, n: row.take("n")? },
            title: row.take("title")?,
            kind: row.take("kind")?,
            priority: row.take("priority")?,
            tags: tags.map_or(Ok(Vec::new()), |tags| serde_json::from_str(&tags)).map_err(Error::internal)?,
            source: row.take("source")?,
            creator: row.take("creator")?,
            key: row.take("idempotency_key")?,
            max_attempts: row.take("max_attempts")?,
            created_at: row.take("created_at")?,
            phase: Phase::read(status, hold, finished_at.unwrap_or(updated_at), home(assignee.as_deref())),
            assignee,
            offered_to: row.take("offered_to")?,
            offered_at: row.take("offered_at")?,
            accepted_at: row.take("accepted_at")?,
            rejection_reason: row.take("rejection_reason")?,
            parked: row.take("parked")?,
            delayed_until: row.take("delayed_until")?,
            waiting_on: row.take("waiting_on")?,
            attempts: row.take("attempts")?,
            reviews: row.take("reviews")?,
            lapsed: row.take("lapsed")?,
            fence: row.take("fence")?,
            delivery: row.take("delivery")?,
            last: Last::read(&mut row)?,
            failure_reason: row.take("failure_reason")?,
            updated_at,
            overdue: false,
        })
    }

    /// For the tables of cases beside the rules.
    #[cfg(test)]
    pub fn sample(phase: Phase) -> Self {
        Self {
            seq: 1,
            id: TaskId { board: "b".into(), n: 1 },
            title: "a task".into(),
            kind: None,
            priority: 50,
            tags: Vec::new(),
            source: None,
            creator: None,
            key: None,
            max_attempts: 3,
            created_at: Time(0),
            phase,
            assignee: None,
            offered_to: None,
            offered_at: None,
            accepted_at: None,
            rejection_reason: None,
            parked: None,
            delayed_until: None,
            waiting_on: 0,
            attempts: 1,
            reviews: 0,
            lapsed: false,
            fence: 1,
            delivery: 1,
            last: None,
            failure_reason: None,
            updated_at: Time(0),
            overdue: false,
        }
    }

    pub fn resource(&self) -> Resource {
        Resource::new("task", &self.id)
    }

    pub fn claim_state(&self) -> ClaimState {
        ClaimState {
            fence: self.fence,
            hold: self.hold().cloned(),
            closed: self.phase.closed(),
            last: self.last.clone(),
        }
    }

    pub fn status(&self) -> Status {
        self.phase.status()
    }

    /// The claim, alive or lost.
    pub fn hold(&self) -> Option<&Hold> {
        self.phase.hold()
    }

    /// Whether a run holds the task under a claim that is over.
    pub fn is_lost(&self, now: Time) -> bool {
        self.hold().is_some_and(|hold| !hold.is_alive(now))
    }

    /// The phase of an unfinished task without a holder.
    pub fn home(&self) -> Phase {
        home(self.assignee.as_deref())
    }

    /// Ends the claim, if there is one, with this verb. The task enters the next phase.
    pub fn end_claim(&mut self, verb: &str, content: &[Option<&str>], next: Phase) {
        if let Some(hold) = std::mem::replace(&mut self.phase, next).hold() {
            self.last = Some(Last::new(hold.fence, verb, content));
        }
    }

    /// An event of this task: its status changed from `from` to the present one.
    pub fn event(&self, kind: &'static str, from: Status) -> Event {
        let hold = self.hold();
        Event {
            run: hold.map(|hold| hold.run.clone()),
            agent: hold.and_then(|hold| hold.agent.clone()),
            fence: hold.map(|hold| hold.fence),
            topic: Some(self.topic()),
            ..Event::new(kind, self.resource().to_string()).states(from.as_str(), self.status().as_str())
        }
    }

    /// Whether its last claim ended by a release.
    pub fn was_given_back(&self) -> bool {
        self.last.as_ref().is_some_and(|last| last.verb == "release")
    }

    fn topic(&self) -> Topic {
        topic(self.status(), self.assignee.as_deref(), self.offered_to.as_deref())
    }

    /// Refuses a finished task.
    pub fn unfinished(&self) -> Result<()> {
        match self.phase {
            Phase::Cancelled(_) => {
                Err(Error::new(Code::Cancelled, format!("task `{}` was cancelled", self.id))
                    .hint(format!("fence retry {} brings it back", self.id)))
            }
            Phase::Failed(_) => {
                Err(Error::new(Code::AlreadyFinished, format!("task `{}` has failed already", self.id))
                    .hint(format!("fence retry {} brings it back", self.id)))
            }
            Phase::Completed(_) => {
                Err(Error::new(Code::AlreadyFinished, format!("task `{}` is completed already", self.id))
                    .hint(format!("fence reopen {} adds a new task with the same text", self.id)))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a held task. Claims of dead holders were given back before.
    pub fn unheld(&self) -> Result<()> {
        let Some(hold) = self.hold() else { return Ok(()) };
        Err(self.held_by(hold, false).hint("wait until it is released, or end the claim with fence unclaim"))
    }

    pub fn held_by(&self, hold: &Hold, own: bool) -> Error {
        Error::new(Code::AlreadyClaimed, format!("task `{}` is held by {}", self.id, hold.describe()))
            .with("holder", &hold.run)
            .with("own", own)
            .with("fence", hold.fence)
            .with("expires_at", hold.expires_at())
    }

    /// The agent that the task is offered or assigned to, if nothing else blocks the task.
    pub fn waits_for(&self) -> Option<&str> {
        match self.phase {
            Phase::Offered if self.parked.is_none() => self.offered_to.as_deref(),
            Phase::Pending if self.ready() == 2 => self.assignee.as_deref(),
            _ => None,
        }
    }

    /// The task as it is now: a lost claim is given back, and a delay that is over is left out.
    pub fn view(self, now: Time) -> Task {
        let task = Now::at(now).of(self);
        let claim = task.hold().map(|hold| hold.claim(&task.resource()));
        task.shown(claim)
    }

    fn shown(self, claim: Option<Claim>) -> Task {
        Task {
            id: self.id.to_string(),
            board: self.id.board.clone(),
            title: self.title,
            status: self.phase.status(),
            priority: self.priority,
            kind: self.kind,
            tags: self.tags,
            source: self.source,
            creator: self.creator,
            reopens: reopened(self.key.as_deref()),
            idempotency_key: self.key,
            assignee: self.assignee,
            offered_to: self.offered_to,
            offered_at: self.offered_at,
            accepted_at: self.accepted_at,
            rejection_reason: self.rejection_reason,
            parked: self.parked,
            delayed_until: self.delayed_until,
            waiting_on: self.waiting_on,
            attempts: self.attempts,
            max_attempts: self.max_attempts,
            failure_reason: self.failure_reason,
            claim,
            created_at: self.created_at,
            updated_at: self.updated_at,
            finished_at: self.phase.finished_at(),
            lapsed: self.overdue,
            ..Task::default()
        }
    }

    pub fn was(&self) -> Was {
        Was { phase: self.phase.clone(), fence: self.fence, ready: self.ready() }
    }

    /// The same value as the database's `ready` column: 1 if anyone may claim the task, 2 if its assignee
    /// may, 0 if nobody may.
    pub fn ready(&self) -> u8 {
        match self.phase {
            _ if self.waiting_on > 0 || self.parked.is_some() || self.delayed_until.is_some() => 0,
            Phase::Unassigned => 1,
            Phase::Pending => 2,
            _ => 0,
        }
    }
}

/// The columns of a task that an event needs whose change concerns no claim: no run is read.
#[derive(Debug)]
pub(super) struct Brief {
    pub seq: i64,
    id: TaskId,
    pub status: Status,
    assignee: Option<String>,
    offered_to: Option<String>,
}

impl Brief {
    pub fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            seq: row.get("seq")?,
            id: TaskId { board: row.get("board")?, n: row.get("n")? },
            status: Status::read(&row.get::<String>("status")?)?,
            assignee: row.get("assignee")?,
            offered_to: row.get("offered_to")?,
        })
    }

    /// An event that leaves the status as it is.
    pub fn event(&self, kind: &'static str) -> Event {
        let event = Event::new(kind, Resource::new("task", &self.id).to_string());
        let topic = topic(self.status, self.assignee.as_deref(), self.offered_to.as_deref());
        Event { topic: Some(topic), ..event.states(self.status.as_str(), self.status.as_str()) }
    }
}

/// The topic of the agents that could claim a task.
fn topic(status: Status, assignee: Option<&str>, offered_to: Option<&str>) -> Topic {
    match (status, assignee, offered_to) {
        (Status::Unassigned, ..) => Topic::pool(),
        (Status::Pending, Some(agent), _) | (Status::Offered, _, Some(agent)) => Topic::agent(agent),
        _ => Topic::tasks(),
    }
}

fn home(assignee: Option<&str>) -> Phase {
    if assignee.is_some() { Phase::Pending } else { Phase::Unassigned }
}

pub(crate) async fn load(tx: &mut Tx<'_>, id: &TaskId) -> Result<Option<Record>> {
    let rows = tx.query(columns!("where task.board = ?1 and task.n = ?2"), params![&id.board, id.n]).await?;
    rows.into_iter().next().map(Record::read).transpose()
}

/// Locks first, then reads: a read that waited for the lock would show the run's old state.
pub(crate) async fn load_locked(tx: &mut Tx<'_>, id: &TaskId) -> Result<Option<Record>> {
    let mut batch = Batch::new();
    let found = add_locked(&mut batch, id);
    tx.send(batch).await?.take(found).rows.into_iter().next().map(Record::read).transpose()
}

/// Locks a task's row, and reads it.
pub(crate) fn add_locked(batch: &mut Batch, id: &TaskId) -> Slot {
    let key = params![&id.board, id.n];
    batch.add(Stmt::lock("select 1 from task where board = ?1 and n = ?2 for update", key.clone()));
    batch.add(Stmt::read(columns!("where task.board = ?1 and task.n = ?2"), key))
}

/// How a set of tasks is locked: against any change, or only against being finished unnoticed. (Finishing
/// locks the row for update; lowering its count of dependencies is still possible.)
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lock {
    ToWrite,
    ToDependOn,
}

/// Tasks by their ids, locked in the order of age. Ids that do not exist are left out.
pub(crate) async fn load_set<'i>(
    tx: &mut Tx<'_>,
    ids: impl Iterator<Item = &'i TaskId>,
    lock: Lock,
) -> Result<HashMap<TaskId, Record>> {
    let rows = ids_set(ids)?;
    let lock = match lock {
        Lock::ToWrite => {
            "select 1 from json_each(?1) as item
             join task on task.board = item.value ->> 'board' and task.n = cast(item.value ->> 'n' as bigint)
             order by task.seq for update of task"
        }
        Lock::ToDependOn => {
            "select 1 from json_each(?1) as item
             join task on task.board = item.value ->> 'board' and task.n = cast(item.value ->> 'n' as bigint)
             order by task.seq for key share of task"
        }
    };
    let mut batch = Batch::new();
    batch.add(Stmt::lock(lock, params![rows.clone()]));
    let found = batch.add(Stmt::read(BY_IDS, params![rows]));
    by_id(tx.send(batch).await?.take(found).rows)
}

/// Like [`load_set`], without locks.
pub(crate) async fn by_ids<'i>(
    tx: &mut Tx<'_>,
    ids: impl Iterator<Item = &'i TaskId>,
) -> Result<HashMap<TaskId, Record>> {
    by_id(tx.query(BY_IDS, params![ids_set(ids)?]).await?)
}

/// Only their titles.
pub(crate) async fn titles<'i>(
    tx: &mut Tx<'_>,
    ids: impl Iterator<Item = &'i TaskId>,
) -> Result<HashMap<TaskId, String>> {
    let sql = "select task.board, task.n, task.title from json_each(?1) as item
               join task on task.board = item.value ->> 'board' and task.n = cast(item.value ->> 'n' as bigint)";
    let rows = tx.query(sql, params![ids_set(ids)?]).await?;
    let title = |row: &Row| Ok((TaskId { board: row.get("board")?, n: row.get("n")? }, row.get("title")?));
    rows.iter().map(title).collect()
}

pub(super) const BY_IDS: &str = columns!(
    "join json_each(?1) as item
       on task.board = item.value ->> 'board' and task.n = cast(item.value ->> 'n' as bigint)"
);

pub(super) fn ids_set<'i>(ids: impl Iterator<Item = &'i TaskId>) -> Result<Value> {
    set(ids.map(|id| serde_json::json!({ "board": id.board, "n": id.n })))
}

pub(super) fn by_id(rows: Vec<Row>) -> Result<HashMap<TaskId, Record>> {
    rows.into_iter().map(|row| Record::read(row).map(|task| (task.id.clone(), task))).collect()
}
