mod life;
mod past;

use super::{
    MAX_ATTEMPTS, Record, Status,
    new::{Inserts, Known, NewTasks, On, Wait, at, resolve},
    plan,
};
use crate::{
    caller::Access,
    clock::Time,
    db::{Batch, Stmt, Tx, numbered, set},
    engine::{
        op::{OnRetry, Op, erased},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    ids::{EXPORTED, TaskId, exported_id},
    limits::{BODY_MAX, NAME_MAX, NUMBER_MAX, OUTPUT_MAX, PLAN_MAX, TEXT_MAX, check},
    log::access::hex,
    ops::claim::Checkpoint,
    params,
};
use life::Life;
use past::Past;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashSet};

/// Import tasks from another system, in one transaction: all or none. Their numbers are kept, and importing
/// them again changes nothing.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Import {
    pub tasks: Vec<Item>,
    /// Report the result without changing anything.
    #[serde(default)]
    pub dry_run: bool,
    /// Request id: repeating the call with the same id returns the first reply.
    #[serde(default)]
    pub request: Option<String>,
}

/// A task of another system.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// `auth-3` becomes the third task of board `auth`, which is created if it does not exist.
    pub id: String,
    pub title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The acceptance criteria.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_when: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// 0 to 100, higher first (default 50).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Ids of tasks that must be completed first, from this import or existing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    #[serde(default)]
    pub status: State,
    /// The agent that the task is assigned to, or that finished it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The agent that the task is offered to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_at: Option<Time>,
    /// The reason for which the last offer was rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejection_reason: Option<String>,
    /// Notify a lead that the task is finished. Default: no, the other system did.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub notify: bool,
    /// Park the task, for this reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<String>,
    /// The task is not retried before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_until: Option<Time>,
    /// The reason for which the task, or its last attempt, failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// The result of a completed task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Oldest first: texts, or texts with their author and time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Line>,
    /// Progress of the work, in the same form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub progress: Vec<Line>,
    /// The last checkpoint of the work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointItem>,
    /// The previous holder. The import's event names it; nobody holds the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The task's origin: any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creator: Option<String>,
    /// The most attempts (default 3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    /// The attempts made so far.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: i64,
    /// A time in the future is replaced by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// The task's key in the other system, such as `pm:auth/3` (default: `import:` and the id). If a task
    /// has this key already, none is imported, and that task is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// A note or a line of progress: only its text, or an object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Line {
    Text(String),
    Full(FullLine),
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FullLine {
    pub text: String,
    /// The author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

impl Line {
    pub fn text(&self) -> &str {
        match self {
            Line::Text(text) => text,
            Line::Full(line) => &line.text,
        }
    }

    pub fn text_mut(&mut self) -> &mut String {
        match self {
            Line::Text(text) => text,
            Line::Full(line) => &mut line.text,
        }
    }

    fn check(&self, field: &str) -> Result<()> {
        check::line(field, self.text(), TEXT_MAX)?;
        match self {
            Line::Text(_) => Ok(()),
            Line::Full(line) => check::optional_name(field, line.agent.as_deref()),
        }
    }
}

impl From<String> for Line {
    fn from(text: String) -> Self {
        Line::Text(text)
    }
}

impl From<&str> for Line {
    fn from(text: &str) -> Self {
        Line::Text(text.into())
    }
}

/// A checkpoint of the work, for the next holder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointItem {
    pub ordinal: i64,
    pub phase: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl CheckpointItem {
    /// The JSON that a task's or a message's `checkpoint` column stores.
    pub(crate) fn stored(&self) -> Result<String> {
        let CheckpointItem { ordinal, phase, data } = self.clone();
        serde_json::to_string(&Checkpoint { ordinal, phase, data }).map_err(Error::internal)
    }

    pub(crate) fn read(stored: &str) -> Result<Self> {
        let Checkpoint { ordinal, phase, data } = serde_json::from_str(stored).map_err(Error::internal)?;
        Ok(Self { ordinal, phase, data })
    }

    pub(crate) fn check(&self, at: &str) -> Result<()> {
        check::range(&format!("{at}ordinal"), self.ordinal, 1, i64::MAX)?;
        check::line(&format!("{at}phase"), &self.phase, TEXT_MAX)?;
        let data = self.data.as_ref().map(ToString::to_string);
        check::optional_json(&format!("{at}data"), data.as_deref(), BODY_MAX)
    }
}

/// The state of an imported task: unfinished (pending if it has an assignee, offered if it has an offer),
/// or how it ended. A claim in the other system is not imported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    #[default]
    Unassigned,
    Completed,
    Failed,
    Cancelled,
}

impl Item {
    /// The status that the imported task gets.
    pub fn status(&self) -> Status {
        match self.status {
            State::Unassigned if self.to.is_some() => Status::Pending,
            State::Unassigned if self.offer.is_some() => Status::Offered,
            State::Unassigned => Status::Unassigned,
            State::Completed => Status::Completed,
            State::Failed => Status::Failed,
            State::Cancelled => Status::Cancelled,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Imported {
    /// The tasks that are new, in the order of the request.
    pub imported: Vec<String>,
    /// Tasks that existed already, by their key, and were left alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub existing: Vec<Existing>,
    /// Tasks that were imported before, finished and pruned since. They are not imported again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Existing {
    /// The id in the request.
    pub id: String,
    /// The existing task with its key.
    pub task: String,
    pub title: String,
    pub status: Status,
}

/// The most notes, and the most lines of progress, of one task: as many as a view shows.
pub(crate) const NOTES_MAX: i64 = 200;

impl Op for Import {
    const NAME: &'static str = "task/import";
    /// An import writes history in the name of others.
    const ACCESS: Access = Access::Admin;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"tasks":[{"id":"auth-3","title":"write the parser"}]}"#;
    type Reply = Imported;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Imported> {
        check::request(self.request.as_deref())?;
        check::range("tasks", self.tasks.len() as i64, 1, PLAN_MAX as i64)?;
        let count = self.tasks.len();
        let mut ids = Vec::with_capacity(count);
        for (i, item) in self.tasks.iter().enumerate() {
            ids.push(item.check_at(&at(i, count))?);
        }
        let (items, lives): (Vec<_>, Vec<_>) = self.tasks.into_iter().map(Item::split).unzip();
        for (i, item) in items.iter().enumerate() {
            item.check(at(i, count))?;
        }
        let after = resolve(&items, "id")?;
        if tx.opening.is_repeat("task.imported", None)? {
            return repeated(tx, &items, &ids).await;
        }
        let mut known = Known::read(tx, &items, &after, &own(&items, &ids)).await?;
        known.recognise(&items, &ids);
        let past = Past::read(tx, &items, &ids, &known).await?;
        let is_new = |i: usize| known.by_item[i].is_none() && !past.gone.contains_key(&i);
        let reply = report(&ids, &known, is_new);
        if !self.dry_run && !reply.imported.is_empty() {
            write(tx, &items, &lives, &ids, &after, &known, &past).await?;
        }
        Ok(reply)
    }
}

/// The result for each item.
fn report(ids: &[TaskId], known: &Known, is_new: impl Fn(usize) -> bool) -> Imported {
    let mut reply = Imported::default();
    for (i, id) in ids.iter().enumerate() {
        match &known.by_item[i] {
            _ if is_new(i) => reply.imported.push(id.to_string()),
            Some(task) => reply.existing.push(Existing {
                id: id.to_string(),
                task: task.id.to_string(),
                title: task.title.clone(),
                status: task.status(),
            }),
            None => reply.gone.push(id.to_string()),
        }
    }
    reply
}

/// The reply to a repeated request.
async fn repeated(tx: &mut Tx<'_>, items: &[plan::Item], ids: &[TaskId]) -> Result<Imported> {
    let known = Known::read(tx, items, &[], &[]).await?;
    let did: HashSet<&str> = tx.opening.repeat.iter().map(|did| did.resource.as_str()).collect();
    Ok(report(ids, &known, |i| did.contains(resource(&ids[i]).as_str())))
}

/// The ids of the items whose key was made by an export.
fn own(items: &[plan::Item], ids: &[TaskId]) -> Vec<TaskId> {
    let exported = |item: &plan::Item| item.key.as_deref().is_some_and(|key| key.starts_with(EXPORTED));
    items.iter().zip(ids).filter(|(item, _)| exported(item)).map(|(_, id)| id.clone()).collect()
}

impl Known {
    /// Matches a task without a key to the item whose key an export of this fleet made for it.
    fn recognise(&mut self, items: &[plan::Item], ids: &[TaskId]) {
        for ((there, item), id) in self.by_item.iter_mut().zip(items).zip(ids) {
            let same =
                |task: &&Record| task.key.is_none() && item.key.as_deref() == Some(&exported_key(task));
            if there.is_none() {
                *there = self.by_id.get(id).filter(same).cloned();
            }
        }
    }
}

/// The key that an export gives to a task without one, to recognise it at an import.
pub(crate) fn exported_key(task: &Record) -> String {
    let key = format!("{EXPORTED}{}", exported_id(&task.id, task.created_at));
    if key.len() <= NAME_MAX { key } else { format!("{EXPORTED}{}", hex(&Sha256::digest(key))) }
}

fn resource(id: &TaskId) -> String {
    format!("task/{id}")
}

const INSERTS: Inserts = Inserts {
    task: concat!(
        "insert into task(/*pg seq,*/ board, n, title, kind, priority, tags, source, creator, idempotency_key,
           max_attempts, status, assignee, offered_to, offered_at, waiting_on, updated_at, created_at, finished_at,
           parked, failure_reason, accepted_at, rejection_reason, told, delayed_until, attempts)
         /*pg overriding system value*/
         select /*pg number,*/ value ->> 'board', cast(value ->> 'n' as bigint), value ->> 'title', value ->> 'kind',
           cast(value ->> 'priority' as bigint), value ->> 'tags', value ->> 'source', value ->> 'creator',
           value ->> 'key', cast(value ->> 'max_attempts' as bigint), value ->> 'status', value ->> 'assignee',
           value ->> 'offered_to', cast(value ->> 'offered_at' as bigint), cast(value ->> 'waiting_on' as bigint),
           cast(?1 as bigint), cast(value ->> 'created_at' as bigint), cast(value ->> 'finished_at' as bigint),
           value ->> 'parked', value ->> 'failure_reason', cast(value ->> 'accepted_at' as bigint),
           value ->> 'rejection_reason', cast(value ->> 'told' as bigint),
           cast(value ->> 'delayed_until' as bigint), cast(value ->> 'attempts' as bigint)
         from ",
        numbered!("task", "seq"),
        " where true order by /*pg value ->> 'key',*/ key on conflict do nothing"
    ),
    doc: "insert into task_doc(task, body, done_when, origin, output, checkpoint_n, checkpoint)
          select task.seq, item.value ->> 'body', item.value ->> 'done_when', item.value ->> 'origin',
            item.value ->> 'output', cast(item.value ->> 'checkpoint_n' as bigint), item.value ->> 'checkpoint'
          from json_each(?1) as item cross join task
          where task.board = item.value ->> 'board' and task.n = cast(item.value ->> 'n' as bigint)",
};

async fn write(
    tx: &mut Tx<'_>,
    items: &[plan::Item],
    lives: &[Life],
    ids: &[TaskId],
    after: &[Vec<On>],
    known: &Known,
    past: &Past,
) -> Result<()> {
    let new = (0..items.len()).filter(|i| known.by_item[*i].is_none() && !past.gone.contains_key(i));
    let (mut new_tasks, mut notes, mut written) = (NewTasks::default(), Vec::new(), Vec::new());
    let mut boards: BTreeMap<&str, i64> = BTreeMap::new();
    for i in new {
        let (id, life) = (&ids[i], &lives[i]);
        let failed = after[i].iter().find_map(|on| match on {
            On::Item(other) if past.gone.get(other) == Some(&false) => Some(&ids[*other]),
            _ => None,
        });
        if let Some(failed) = failed {
            let field = format!("{}after", at(i, items.len()));
            let message = format!("`{field}` names `{failed}`, which was not completed before it was pruned");
            return Err(Error::new(Code::NotFound, message).with("field", field));
        }
        // A pruned task was completed: nothing waits for it.
        let wait = |other: usize| Wait {
            on: ids[other].clone(),
            completed: lives[other].status == Status::Completed,
        };
        let waits = after[i]
            .iter()
            .filter_map(|on| known.wait(on, |other| (!past.gone.contains_key(&other)).then(|| wait(other))));
        let row = new_tasks.push(tx, id, &items[i], life.status, waits);
        life.fill(row, tx.now)?;
        new_tasks.event(life.event(id, items[i].key.as_deref()));
        notes.extend(life.notes(id, tx.now, tx.caller.agent.as_deref()));
        let next = boards.entry(&id.board).or_default();
        *next = (*next).max(id.n + 1);
        written.push(id);
    }
    let (insert, belonging) = new_tasks.writes(tx, &INSERTS)?;
    // The other writes find the tasks by their numbers, so the numbers must be ours first.
    let mut batch = Batch::new();
    batch.add(raise_counters(tx, &boards)?);
    let inserted = batch.add(insert);
    if tx.send(batch).await?.affected(inserted) < written.len() as u64 {
        return Err(Error::raced("a task with the same id or idempotency key was added at this moment"));
    }
    let mut batch: Batch = belonging.into_iter().collect();
    if !notes.is_empty() {
        batch.add(Stmt::write(
            "insert into note(task, kind, at, agent, body)
             select task.seq, item.value ->> 'kind', cast(item.value ->> 'at' as bigint), item.value ->> 'agent',
               item.value ->> 'text'
             from json_each(?1) as item
             join task on task.board = item.value ->> 'board' and task.n = cast(item.value ->> 'n' as bigint)
             order by item.key",
            params![set(notes)?],
        ));
    }
    batch.add(above_the_floor(&written)?);
    tx.send(batch).await?;
    Ok(())
}

/// Raises the new rows' fences to the floor: a number may have belonged to another import's task that was
/// claimed and pruned. It is a statement of its own because the insert may wait for a prune; only a later
/// statement sees the new floor.
fn above_the_floor(ids: &[&TaskId]) -> Result<Stmt> {
    let rows = ids.iter().map(|id| json!({ "board": id.board, "n": id.n }));
    Ok(Stmt::write(
        "update task set fence = (select floor from fleet) where fence < (select floor from fleet) and (board, n) in (
           select value ->> 'board', cast(value ->> 'n' as bigint) from json_each(?1))",
        params![set(rows)?],
    ))
}

/// The counters come last in the lock order, sorted by name. Imports and additions to the same board wait
/// for each other here, before the first of them writes a number.
fn raise_counters(tx: &Tx<'_>, boards: &BTreeMap<&str, i64>) -> Result<Stmt> {
    let rows = boards.iter().map(|(name, next)| json!({ "name": name, "next": next }));
    Ok(Stmt::write(
        "insert into board(name, next_n, created_at)
         select value ->> 'name', cast(value ->> 'next' as bigint), cast(?1 as bigint)
         from json_each(?2) where true order by key
         on conflict (name) do update set next_n =
           case when board.next_n < excluded.next_n then excluded.next_n else board.next_n end",
        params![tx.now, set(rows)?],
    ))
}

impl Item {
    /// Whether an import would accept this item on its own: for importers that leave out invalid items
    /// instead of being refused.
    pub fn check(&self) -> Result<()> {
        self.check_at("")?;
        self.clone().split().0.check(String::new())
    }

    /// Checks the fields that only an import has. The other fields are checked as for an added task.
    fn check_at(&self, at: &str) -> Result<TaskId> {
        let field = |name: &str| format!("{at}{name}");
        let id = TaskId::check(&field("id"), &self.id)?;
        check::range(&field("id"), id.n, 1, NUMBER_MAX)?;
        for (name, texts) in [("notes", &self.notes), ("progress", &self.progress)] {
            check::range(&field(name), texts.len() as i64, 0, NOTES_MAX)?;
            texts.iter().try_for_each(|line| line.check(&field(name)))?;
        }
        check::optional_text(&field("output"), self.output.as_deref(), OUTPUT_MAX)?;
        check::optional_text(&field("failure_reason"), self.failure_reason.as_deref(), TEXT_MAX)?;
        check::optional_text(&field("rejection_reason"), self.rejection_reason.as_deref(), TEXT_MAX)?;
        check::optional_text(&field("owner"), self.owner.as_deref(), TEXT_MAX)?;
        check::range(&field("attempts"), self.attempts, 0, self.max_attempts.unwrap_or(MAX_ATTEMPTS))?;
        self.checkpoint.as_ref().map_or(Ok(()), |checkpoint| checkpoint.check(&field("checkpoint.")))?;
        if let Some(reason) = &self.parked {
            check::line(&field("parked"), reason, TEXT_MAX)?;
        }
        let is_told_of = matches!(self.status, State::Completed | State::Failed);
        let unfit = [
            ("parked", self.parked.is_some() && self.status != State::Unassigned, "not finished"),
            ("offer", self.offer.is_some() && self.status != State::Unassigned, "not finished"),
            ("offered_at", self.offered_at.is_some() && self.offer.is_none(), "offered"),
            ("notify", self.notify && !is_told_of, "completed or failed"),
            ("output", self.output.is_some() && self.status != State::Completed, "completed"),
            (
                "failure_reason",
                self.failure_reason.is_some() && self.status == State::Completed,
                "not completed",
            ),
            (
                "delayed_until",
                self.delayed_until.is_some() && self.status != State::Unassigned,
                "not finished",
            ),
            ("finished_at", self.finished_at.is_some() && self.status == State::Unassigned, "finished"),
        ];
        match unfit.iter().find(|(_, unfit, _)| *unfit) {
            Some((name, _, whose)) => {
                Err(Error::invalid(&field(name), format!("is only for a task that is {whose}")))
            }
            None => Ok(id),
        }
    }
}
