use super::{Record, Task, columns, overdue};
use crate::{
    caller::Access,
    db::{Batch, Stmt, Tx, by_keys},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::check,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{cmp::Reverse, collections::HashMap};

/// List the tasks that could be claimed now, best first. Nothing is claimed, so another run may claim one first.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ready {
    /// Only tasks of this board.
    #[serde(default)]
    pub board: Option<String>,
    /// Also tasks assigned to this agent.
    #[serde(default)]
    pub agent: Option<String>,
    /// At most this many (default 20, at most 1000).
    #[serde(default)]
    pub limit: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReadyTasks {
    pub tasks: Vec<Task>,
}

impl Op for Ready {
    const NAME: &'static str = "task/ready";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = r#"{"board":"auth"}"#;
    const READS: bool = true;
    type Reply = ReadyTasks;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<ReadyTasks> {
        let limit = self.limit.unwrap_or(20);
        check::range("limit", limit, 1, 1000)?;
        let board = self.board.as_deref();
        check::optional_name("board", board)?;
        check::optional_name("agent", self.agent.as_deref())?;
        let agent = tx.caller.acting_as("agent", self.agent.as_deref())?;
        let overdue = overdue(tx, board).await?;
        let mut batch = Batch::new();
        if let Some(agent) = agent.as_deref() {
            let sql = columns!(
                "where task.ready = 2 and task.assignee = ?1 and (cast(?2 as text) is null or task.board = ?2)
                 and task.seq not in (select cast(value ->> 'k' as bigint) from json_each(?4))
                 order by task.priority desc, task.seq limit ?3"
            );
            batch.add(Stmt::read(sql, params![agent, board, limit, overdue.keys()]));
        }
        batch.add(match board {
            Some(board) => Stmt::read(
                columns!(
                    "where task.ready = 1 and task.board between ?1 and ?1
                     order by task.board, task.priority desc, task.seq limit ?2"
                ),
                params![board, limit],
            ),
            None => Stmt::read(
                columns!("where task.ready = 1 order by task.priority desc, task.seq limit ?1"),
                params![limit],
            ),
        });
        // Tasks whose delay is over can be claimed, too.
        let delayed = columns!(
            "where task.delayed_until <= ?1 and task.waiting_on = 0 and task.parked is null
             and task.status in ('unassigned', 'pending')
             and (cast(?2 as text) is null or task.board = ?2)
             and (task.assignee is null or task.assignee = ?3)
             and task.seq not in (select cast(value ->> 'k' as bigint) from json_each(?5))
             order by task.assignee is null, task.priority desc, task.seq limit ?4"
        );
        if tx.opening.due.is_due(tx.now) {
            batch.add(Stmt::read(delayed, params![tx.now, board, agent.as_deref(), limit, overdue.keys()]));
        }
        let rows = tx.send(batch).await?.into_rows();
        let found = rows.map(Record::read).collect::<Result<Vec<_>>>()?;
        let mut tasks = overdue.merge(found, |task| {
            board.is_none_or(|board| task.id.board == board)
                && match task.ready() {
                    1 => true,
                    2 => task.assignee.as_deref() == agent.as_deref(),
                    _ => false,
                }
        });
        // Every task here that has an assignee is assigned to the asking agent.
        tasks.sort_by_key(|task| (task.assignee.is_none(), Reverse(task.priority), task.seq));
        tasks.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        if let (true, Some(board)) = (tasks.is_empty(), board) {
            crate::ops::board::require(tx, board).await?;
        }
        let mut done_when = done_when(tx, &tasks).await?;
        let view = |task: Record| {
            let done_when = done_when.remove(&task.seq);
            Task { done_when, ..task.view(tx.now) }
        };
        Ok(ReadyTasks { tasks: tasks.into_iter().map(view).collect() })
    }
}

/// The acceptance criteria of the tasks that have them, to help the reader choose.
async fn done_when(tx: &mut Tx<'_>, tasks: &[Record]) -> Result<HashMap<i64, String>> {
    let keys: Vec<i64> = tasks.iter().map(|task| task.seq).collect();
    if keys.is_empty() {
        return Ok(HashMap::new());
    }
    let done_when = by_keys!(
        read,
        keys.as_slice(),
        "select task, done_when from task_doc where task",
        "and done_when is not null"
    );
    tx.one(done_when).await?.rows.iter().map(|row| Ok((row.get("task")?, row.get("done_when")?))).collect()
}
