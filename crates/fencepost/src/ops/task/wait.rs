use super::{Now, Record, State, Status, by_ids, is_ready, not_found, overdue, state_now};
use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::{Batch, Row, Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::{Error, Result},
    ids::TaskId,
    limits::{WAITED_MAX, check},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};

/// Wait until tasks are finished: named ones, or all of a board. The wait is over when all are completed,
/// or as soon as one failed or was cancelled, because only a person can change that. It changes nothing,
/// but a task whose last attempt was lost counts as failed from that moment on.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// These tasks (at most 1000).
    #[serde(default)]
    pub tasks: Vec<String>,
    /// Or all tasks of this board. If it has no unfinished task, the wait is over at once.
    #[serde(default)]
    pub board: Option<String>,
    /// Stop as soon as one task is finished, with any result.
    #[serde(default)]
    pub any: bool,
    /// How long to wait (at most 10 minutes; repeat the call to wait longer).
    #[serde(default)]
    pub wait_ms: Option<Millis>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Waited {
    /// The wait is over.
    pub over: bool,
    pub completed: i64,
    pub failed: i64,
    pub cancelled: i64,
    /// The number of unfinished tasks.
    pub open: i64,
    /// The named tasks. Of a board, up to 20: first failed ones, then cancelled, held and waiting ones.
    pub tasks: Vec<Waiting>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Waiting {
    pub id: String,
    pub status: Status,
    /// As `list` shows it: a task that waits for others is `blocked`.
    pub state: State,
}

impl Wait {
    pub fn of(tasks: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { tasks: tasks.into_iter().map(Into::into).collect(), ..Self::default() }
    }
    pub fn board(board: impl Into<String>) -> Self {
        Self { board: Some(board.into()), ..Self::default() }
    }
}

impl Op for Wait {
    const NAME: &'static str = "task/wait";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = r#"{"tasks":["auth-3"]}"#;
    const READS: bool = true;
    type Reply = Waited;
    erased!();

    fn wait(&self) -> Option<Millis> {
        self.wait_ms
    }

    fn not_yet(answer: Result<&Waited, &Error>) -> bool {
        answer.is_ok_and(|waited| !waited.over)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Waited> {
        let waited = match &self.board {
            Some(_) if !self.tasks.is_empty() => {
                return Err(Error::invalid("board", "means all its tasks: leave out `tasks`"));
            }
            None if self.tasks.is_empty() => {
                return Err(
                    Error::invalid("tasks", "names nothing to wait for").hint("name tasks, or a `board`")
                );
            }
            Some(board) => {
                check::plain_name("board", board)?;
                if tx.opening.probe_only && !self.any && !is_over(tx, board).await? {
                    return Ok(Waited::default());
                }
                of_board(tx, board).await?
            }
            None => named(tx, &self.tasks).await?,
        };
        let lost = waited.failed + waited.cancelled;
        let over = waited.open == 0 || lost > 0 || (self.any && waited.completed > 0);
        Ok(Waited { over, ..waited })
    }
}

async fn named(tx: &mut Tx<'_>, names: &[String]) -> Result<Waited> {
    if names.len() > WAITED_MAX {
        let message = format!("names {} tasks; at most {WAITED_MAX} are allowed", names.len());
        return Err(Error::invalid("tasks", message));
    }
    let ids = names.iter().map(|name| TaskId::check("tasks", name)).collect::<Result<Vec<_>>>()?;
    let mut found = by_ids(tx, ids.iter().collect::<HashSet<_>>().into_iter()).await?;
    if let Some(id) = ids.iter().find(|id| !found.contains_key(id)) {
        return Err(not_found(id));
    }
    let rule = Now::read(tx).await?;
    let mut waited = Waited::default();
    tx.notes.try_again_at = None;
    // A name that is given twice is one task.
    for task in ids.iter().filter_map(|id| found.remove(id)) {
        let lost_at = loses_at(&task).filter(|at| *at > tx.now);
        tx.notes.try_again_at = [tx.notes.try_again_at, lost_at].into_iter().flatten().min();
        waited.add(rule.of(task));
    }
    Ok(waited)
}

/// When a task on its last attempt fails, if its holder is not renewed.
fn loses_at(task: &Record) -> Option<Time> {
    let last = task.status() == Status::InProgress && task.attempts >= task.max_attempts;
    task.hold().filter(|_| last).map(|hold| hold.expires_at())
}

impl Waiting {
    fn of(task: &Record) -> Self {
        Self { id: task.id.to_string(), status: task.status(), state: task.state() }
    }
}

impl Waited {
    fn add(&mut self, task: Record) {
        let count = match task.status() {
            Status::Completed => &mut self.completed,
            Status::Failed => &mut self.failed,
            Status::Cancelled => &mut self.cancelled,
            _ => &mut self.open,
        };
        *count += 1;
        self.tasks.push(Waiting::of(&task));
    }
}

const LISTED: i64 = 20;

/// Whether the wait is over. The first entry of each index tells: a board of 100,000 tasks is counted only
/// at the end (30 ms on SQLite, 60 on PostgreSQL), not at every attempt.
///
/// `held` counts the board's held tasks: all of them, those that lost their last attempt, and the time when the next
/// one could. They are searched among the held tasks of all boards, which are few, because no index of held tasks
/// begins with the board; the statement keeps the planner from using another index that does.
const IS_OVER: &str = "
    select held.next_at, case
      when held.lost > 0
        or exists (select 1 from task where status = 'failed' and board = ?1)
        or exists (select 1 from task where status = 'cancelled' and board = ?1) then 1
      when held.n > 0
        or exists (select 1 from task where ready = 1 and board = ?1)
        or exists (select 1 from task where ready = 2 and board = ?1)
        or exists (select 1 from task where ready = 0 and run is null and finished_at is null and board = ?1) then 0
      else 1 end as is_over
    from (
      select count(*) as n, count(case when is_last = 1 and ends_at <= ?2 then 1 end) as lost,
        min(case when is_last = 1 and ends_at > ?2 then ends_at end) as next_at
      from (
        select case when task.status = 'in_progress' and task.attempts >= task.max_attempts then 1 else 0 end as is_last,
          case when run.ended_at is not null then 0
            when task.until_at < run.expires_at then task.until_at else run.expires_at end as ends_at
        from task cross join run where task.run > 0 and run.key = task.run and task.board || '' = ?1) as each_held
    ) as held";

/// Counted in one statement, for consistent numbers, by an index for each state. Completed tasks have no
/// index (every completion would write it): they are the rest. `held` as in [`IS_OVER`].
const COUNTS: &str = "
    select held.n as held, held.lost, held.next_at,
      (select count(*) from board where name = ?1) as boards,
      (select count(*) from task where board = ?1) as total,
      (select count(*) from task where ready = 1 and board = ?1)
      + (select count(*) from task where ready = 2 and board = ?1)
      + (select count(*) from task where ready = 0 and run is null and finished_at is null and board = ?1) as free,
      (select count(*) from task where status = 'failed' and board = ?1) as failed,
      (select count(*) from task where status = 'cancelled' and board = ?1) as cancelled
    from (
      select count(*) as n, count(case when is_last = 1 and ends_at <= ?2 then 1 end) as lost,
        min(case when is_last = 1 and ends_at > ?2 then ends_at end) as next_at
      from (
        select case when task.status = 'in_progress' and task.attempts >= task.max_attempts then 1 else 0 end as is_last,
          case when run.ended_at is not null then 0
            when task.until_at < run.expires_at then task.until_at else run.expires_at end as ends_at
        from task cross join run where task.run > 0 and run.key = task.run and task.board || '' = ?1) as each_held
    ) as held";

async fn is_over(tx: &mut Tx<'_>, board: &str) -> Result<bool> {
    let rows = tx.query(IS_OVER, params![board, tx.now]).await?;
    tx.notes.try_again_at = rows[0].get("next_at")?;
    rows[0].get("is_over")
}

/// Some tasks of a board that are not overdue.
macro_rules! some {
    ($from_where:expr) => {
        concat!(
            "select task.seq, task.board, task.n, task.status, ",
            state_now!("?4"),
            " as state from ",
            $from_where,
            " and task.seq not in (select cast(value ->> 'k' as bigint) from json_each(?3))
             order by task.seq limit ?2"
        )
    };
}

async fn of_board(tx: &mut Tx<'_>, board: &str) -> Result<Waited> {
    let overdue = overdue(tx, Some(board)).await?;
    let held =
        some!("task cross join run where task.run > 0 and run.key = task.run and task.board || '' = ?1");
    // The column `ready` does not know yet that a delay is over.
    let woken = some!(concat!("task where delayed_until <= ?4 and ", is_ready!("?4"), " and board = ?1"));
    let now = tx.now;
    let mut batch = Batch::new();
    let counts = batch.add(Stmt::read(COUNTS, params![board, now]));
    let mut some = |sql| batch.add(Stmt::read(sql, params![board, LISTED, overdue.keys(), now]));
    let ranked = [
        (Rank::Failed, some(some!("task where status = 'failed' and board = ?1"))),
        (Rank::Cancelled, some(some!("task where status = 'cancelled' and board = ?1"))),
        (Rank::Held, some(held)),
        (Rank::Free, some(some!("task where ready = 1 and board = ?1"))),
        (Rank::Assigned, some(some!("task where ready = 2 and board = ?1"))),
        (
            Rank::Waiting,
            some(some!("task where ready = 0 and run is null and finished_at is null and board = ?1")),
        ),
    ];
    let woken = some(woken);
    let mut answers = tx.send(batch).await?;
    let counts = &answers.take(counts).rows[0];
    let count = |name| counts.get::<i64>(name);
    if count("boards")? == 0 {
        return Err(crate::ops::board::not_found(board));
    }
    tx.notes.try_again_at = counts.get("next_at")?;
    let (held, lost, free) = (count("held")?, count("lost")?, count("free")?);
    let (failed, cancelled) = (count("failed")?, count("cancelled")?);
    let mut listed = BTreeMap::new();
    for (rank, slot) in ranked {
        for row in answers.take(slot).rows {
            listed.insert(row.get::<i64>("seq")?, (rank, waiting(&row)?));
        }
    }
    // The woken tasks are among the waiting ones, too.
    for row in answers.take(woken).rows {
        let task = waiting(&row)?;
        let rank = if task.status == Status::Pending { Rank::Assigned } else { Rank::Free };
        listed.insert(row.get::<i64>("seq")?, (rank, task));
    }
    listed.extend(overdue.iter().map(|task| (task.seq, (Rank::of(task), Waiting::of(task)))));
    let mut listed: Vec<_> = listed.into_iter().collect();
    listed.sort_by_key(|(seq, (rank, _))| (*rank, *seq));
    let tasks = listed.into_iter().map(|(_, (_, task))| task).take(LISTED as usize).collect();
    Ok(Waited {
        over: false,
        completed: count("total")? - free - held - failed - cancelled,
        failed: failed + lost,
        cancelled,
        open: free + held - lost,
        tasks,
    })
}

/// The order in which tasks are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Failed,
    Cancelled,
    Held,
    /// Anyone could claim it.
    Free,
    /// Its assignee could claim it.
    Assigned,
    Waiting,
}

impl Rank {
    fn of(task: &Record) -> Self {
        match (task.status(), task.ready()) {
            (Status::Failed, _) => Rank::Failed,
            (Status::Cancelled, _) => Rank::Cancelled,
            (Status::InProgress | Status::Reviewing, _) => Rank::Held,
            (_, 1) => Rank::Free,
            (_, 2) => Rank::Assigned,
            _ => Rank::Waiting,
        }
    }
}

fn waiting(row: &Row) -> Result<Waiting> {
    let id = TaskId { board: row.get("board")?, n: row.get("n")? };
    let (status, state): (String, String) = (row.get("status")?, row.get("state")?);
    Ok(Waiting { id: id.to_string(), status: Status::read(&status)?, state: State::read(&state)? })
}
