//! A task's row: reading and writing it.

use super::{Now, Status, Task, reopen::reopened};
use crate::{
    clock::Time,
    db::{Batch, Row, Slot, Stmt, Tx, Value, set},
    error::{Code, Error, Result},
    ids::{Resource, TaskId},
    lease::{Claim, ClaimState, Closed, Hold, Last, Under, overdue::Item},
    log::Event,
    params,
    topic::Topic,
};
use std::collections::HashMap;

/// The state of a task. A run holds it exactly while it is reviewing or in progress.
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
    pub status: Status,
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
    pub hold: Option<Hold>,
    pub last: Option<Last>,
    pub failure_reason: Option<String>,
    pub updated_at: Time,
    pub finished_at: Option<Time>,
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
    pub status: Status,
    pub fence: i64,
    pub hold: Option<Hold>,
    ready: u8,
}

impl Record {
    pub fn read(mut row: Row) -> Result<Self> {
        let status = Status::read(&row.take::<String>("status")?)?;
        let tags: Option<String> = row.take("tags")?;
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
            status,
            assignee: row.take("assignee")?,
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
            hold: Hold::read(&mut row)?,
            last: Last::read(&mut row)?,
            failure_reason: row.take("failure_reason")?,
            updated_at: row.take("updated_at")?,
            finished_at: row.take("finished_at")?,
            overdue: false,
        })
    }

    pub fn resource(&self) -> Resource {
        Resource::new("task", &self.id)
    }

    pub fn claim_state(&self) -> ClaimState {
        let closed = match self.status {
            Status::Completed | Status::Failed => Some(Closed::Finished),
            Status::Cancelled => Some(Closed::Cancelled),
            _ => None,
        };
        ClaimState { fence: self.fence, hold: self.hold.clone(), closed, last: self.last.clone() }
    }

    /// The status that an unfinished task has without a holder.
    pub fn home(&self) -> Status {
        if self.assignee.is_some() { Status::Pending } else { Status::Unassigned }
    }

    /// Ends the claim by this verb. The caller sets the status.
    pub fn end_claim(&mut self, verb: &str, content: &[Option<&str>]) {
        if let Some(hold) = self.hold.take() {
            self.last = Some(Last::new(hold.fence, verb, content));
        }
    }

    /// An event of this task: its status changed from `from` to the present one.
    pub fn event(&self, kind: &'static str, from: Status) -> Event {
        let hold = self.hold.as_ref();
        Event {
            run: hold.map(|hold| hold.run.clone()),
            agent: hold.and_then(|hold| hold.agent.clone()),
            fence: hold.map(|hold| hold.fence),
            topic: Some(self.topic()),
            ..Event::new(kind, self.resource().to_string()).states(from.as_str(), self.status.as_str())
        }
    }

    /// The topic of the agents that could take the task now.
    fn topic(&self) -> Topic {
        match (self.status, &self.assignee, &self.offered_to) {
            (Status::Unassigned, ..) => Topic::pool(),
            (Status::Pending, Some(agent), _) | (Status::Offered, _, Some(agent)) => Topic::agent(agent),
            _ => Topic::tasks(),
        }
    }

    /// Refuses a finished task.
    pub fn unfinished(&self) -> Result<()> {
        match self.status {
            Status::Cancelled => {
                Err(Error::new(Code::Cancelled, format!("task `{}` was cancelled", self.id))
                    .hint(format!("fence retry {} brings it back", self.id)))
            }
            Status::Failed => {
                Err(Error::new(Code::AlreadyFinished, format!("task `{}` has failed already", self.id))
                    .hint(format!("fence retry {} brings it back", self.id)))
            }
            Status::Completed => {
                Err(Error::new(Code::AlreadyFinished, format!("task `{}` is completed already", self.id))
                    .hint(format!("fence reopen {} adds a new task with the same text", self.id)))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a held task. Claims of dead holders were given back before.
    pub fn unheld(&self) -> Result<()> {
        let Some(hold) = &self.hold else { return Ok(()) };
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
        match self.status {
            Status::Offered if self.parked.is_none() => self.offered_to.as_deref(),
            Status::Pending if self.ready() == 2 => self.assignee.as_deref(),
            _ => None,
        }
    }

    /// The task as it is now: a lost claim is given back, and a delay that is over is left out.
    pub fn view(self, now: Time) -> Task {
        let task = Now::at(now).of(self);
        let claim = task.hold.as_ref().map(|hold| hold.claim(&task.resource()));
        task.shown(claim)
    }

    fn shown(self, claim: Option<Claim>) -> Task {
        Task {
            id: self.id.to_string(),
            board: self.id.board.clone(),
            title: self.title,
            status: self.status,
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
            finished_at: self.finished_at,
            lapsed: self.overdue,
            ..Task::default()
        }
    }

    pub fn was(&self) -> Was {
        Was { status: self.status, fence: self.fence, hold: self.hold.clone(), ready: self.ready() }
    }

    /// The same value as the database's `ready` column: 1 if anyone may claim the task, 2 if its assignee
    /// may, 0 if nobody may.
    pub fn ready(&self) -> u8 {
        match self.status {
            _ if self.waiting_on > 0 || self.parked.is_some() || self.delayed_until.is_some() => 0,
            Status::Unassigned => 1,
            Status::Pending => 2,
            _ => 0,
        }
    }
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

/// Writes a claim or a completion, which do not change the assignee or the offer. These are most of all
/// writes, and a quarter cheaper without the other columns. `?3` is the authority ([`Under::number`]), `?4`
/// the run that it depends on.
const SAVE_CLAIM: &str = "
    update task set status = ?7, attempts = ?8, lapsed = ?9, run = ?10, fence = ?11, until_at = ?12, claimed_at = ?13,
      last_fence = ?14, last_verb = ?15, last_digest = ?16, failure_reason = ?17, updated_at = ?6, finished_at = ?18
    where seq = ?1 and fence = ?2
    and (?3 = 0 or 1 = (select 1 from run where key = ?4 and ended_at is null and expires_at > ?5))
    and (?3 < 2 or until_at is null or until_at > ?5)";

/// Writes any other change.
const SAVE: &str = "
    update task set status = ?7, attempts = ?8, lapsed = ?9, run = ?10, fence = ?11, until_at = ?12, claimed_at = ?13,
      last_fence = ?14, last_verb = ?15, last_digest = ?16, failure_reason = ?17, updated_at = ?6, finished_at = ?18,
      assignee = ?19, offered_to = ?20, offered_at = ?21, accepted_at = ?22, rejection_reason = ?23, parked = ?24,
      delayed_until = ?25, reviews = ?26
    where seq = ?1 and fence = ?2
    and (?3 = 0 or 1 = (select 1 from run where key = ?4 and ended_at is null and expires_at > ?5))
    and (?3 < 2 or until_at is null or until_at > ?5)";

/// The one write of a transition. No row is written if the fence changed, or if the claim that it depends on is dead.
pub(crate) fn save(batch: &mut Batch, was: &Was, after: &Record, under: Under, now: Time) -> Slot {
    let (hold, last) = (after.hold.as_ref(), after.last.as_ref());
    let holder = if under == Under::NewClaim { hold } else { was.hold.as_ref() };
    let mut params = params![
        after.seq,
        was.fence,
        under.number(),
        holder.map(|hold| hold.run_key),
        now,
        after.updated_at,
        after.status.as_str(),
        after.attempts,
        after.lapsed,
        hold.map(|hold| hold.run_key),
        after.fence,
        hold.and_then(|hold| hold.until),
        hold.map(|hold| hold.claimed_at),
        last.map(|last| last.fence),
        last.map(|last| last.verb.as_str()),
        last.map(|last| last.digest.as_str()),
        after.failure_reason.as_deref(),
        after.finished_at,
    ];
    let sql = if was.status.leads_straight_to(after.status) {
        SAVE_CLAIM
    } else {
        params.extend(params![
            after.assignee.as_deref(),
            after.offered_to.as_deref(),
            after.offered_at,
            after.accepted_at,
            after.rejection_reason.as_deref(),
            after.parked.as_deref(),
            after.delayed_until,
            after.reviews,
        ]);
        SAVE
    };
    let saved = batch.add(Stmt::write(sql, params));
    if !after.tags.is_empty() && was.ready != after.ready() {
        batch.add(sync_tags(crate::db::key_set([after.seq])));
    }
    saved
}

/// Updates the tags' copies of `ready` for the tasks of this key set.
pub(super) fn sync_tags(keys: Value) -> Stmt {
    Stmt::write(
        "update task_tag set ready = (select ready from task where seq = task_tag.task)
         where task in (select cast(value ->> 'k' as bigint) from json_each(?1))",
        params![keys],
    )
}

/// Many transitions in one statement. The caller holds the row locks; claims that are used or made must be
/// alive, as in [`save()`]. Returns the `seq` of each row that was written.
pub(crate) async fn save_set(tx: &mut Tx<'_>, changes: &[(Was, Record)], under: Under) -> Result<Vec<i64>> {
    let rows = changes.iter().map(|(was, after)| {
        let (hold, last) = (after.hold.as_ref(), after.last.as_ref());
        let holder = if under == Under::NewClaim { hold } else { was.hold.as_ref() };
        serde_json::json!({
            "seq": after.seq, "was": was.fence, "holder": holder.map(|hold| hold.run_key),
            "status": after.status.as_str(), "assignee": after.assignee, "offered_to": after.offered_to,
            "offered_at": after.offered_at.map(|t| t.0), "attempts": after.attempts, "reviews": after.reviews,
            "lapsed": i64::from(after.lapsed), "delayed_until": after.delayed_until.map(|t| t.0),
            "run": hold.map(|hold| hold.run_key), "fence": after.fence,
            "until": hold.and_then(|hold| hold.until).map(|t| t.0), "claimed_at": hold.map(|hold| hold.claimed_at.0),
            "last_fence": last.map(|last| last.fence), "last_verb": last.map(|last| &last.verb),
            "last_digest": last.map(|last| &last.digest), "failure_reason": after.failure_reason,
            "finished_at": after.finished_at.map(|t| t.0),
        })
    });
    let rows = set(rows)?;
    let written = tx
        .execute_returning(
            "update task set status = item.value ->> 'status', assignee = item.value ->> 'assignee',
               offered_to = item.value ->> 'offered_to', offered_at = cast(item.value ->> 'offered_at' as bigint),
               attempts = cast(item.value ->> 'attempts' as bigint),
               reviews = cast(item.value ->> 'reviews' as bigint), lapsed = cast(item.value ->> 'lapsed' as bigint),
               delayed_until = cast(item.value ->> 'delayed_until' as bigint),
               run = cast(item.value ->> 'run' as bigint), fence = cast(item.value ->> 'fence' as bigint),
               until_at = cast(item.value ->> 'until' as bigint),
               claimed_at = cast(item.value ->> 'claimed_at' as bigint),
               last_fence = cast(item.value ->> 'last_fence' as bigint), last_verb = item.value ->> 'last_verb',
               last_digest = item.value ->> 'last_digest', failure_reason = item.value ->> 'failure_reason',
               finished_at = cast(item.value ->> 'finished_at' as bigint), updated_at = ?2
             from json_each(?1) as item
             where task.seq = cast(item.value ->> 'seq' as bigint)
             and task.fence = cast(item.value ->> 'was' as bigint)
             and (?3 = 0 or 1 = (select 1 from run where key = cast(item.value ->> 'holder' as bigint)
               and ended_at is null and expires_at > ?2))
             and (?3 < 2 or until_at is null or until_at > ?2)
             returning task.seq",
            params![rows, tx.now, under.number()],
        )
        .await?;
    let written = written.iter().map(|row| row.get("seq")).collect::<Result<Vec<i64>>>()?;
    let moved = |(was, after): &&(Was, Record)| !after.tags.is_empty() && was.ready != after.ready();
    let tagged: Vec<i64> = changes.iter().filter(moved).map(|(_, after)| after.seq).collect();
    if !tagged.is_empty() {
        tx.one(sync_tags(crate::db::key_set(tagged))).await?;
    }
    Ok(written)
}
