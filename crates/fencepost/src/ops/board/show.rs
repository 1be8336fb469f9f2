use super::list::{Board, List};
use crate::{
    caller::Access,
    db::{Row, Stmt, Tx, by_keys},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    ids::TaskId,
    limits::check,
    ops::task::{self, Task},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Show a board: its counts, its tasks, oldest first, and their dependencies.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Show {
    pub board: String,
    /// At most this many tasks (default 200, at most 1000).
    #[serde(default)]
    pub limit: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Shown {
    pub board: Board,
    pub tasks: Vec<Task>,
    /// The dependencies of the tasks shown, also on other boards.
    pub edges: Vec<Edge>,
    /// The board has more tasks than are shown.
    pub more: bool,
}

/// A dependency.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Edge {
    pub task: String,
    pub after: String,
}

impl Op for Show {
    const NAME: &'static str = "board/show";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = r#"{"board":"auth"}"#;
    const READS: bool = true;
    type Reply = Shown;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Shown> {
        check::plain_name("board", &self.board)?;
        let limit = self.limit.unwrap_or(200);
        check::range("limit", limit, 1, 1000)?;
        let overdue = task::overdue(tx, Some(&self.board)).await?;
        let board = List::of(tx, Some(&self.board), &overdue).await?.pop();
        let board = board.ok_or_else(|| super::not_found(&self.board))?;
        let rows = tx
            .query(
                task::columns!("where task.board = ?1 order by task.seq limit ?2"),
                params![&self.board, limit + 1],
            )
            .await?;
        let more = rows.len() as i64 > limit;
        let records = rows.into_iter().take(usize::try_from(limit).unwrap_or(usize::MAX));
        let records = records.map(task::Record::read).collect::<Result<Vec<_>>>()?;
        let keys: Vec<i64> = records.iter().map(|record| record.seq).collect();
        let edges: Stmt = by_keys!(
            read,
            keys.as_slice(),
            "select task.board, task.n, other.board as other_board, other.n as other_n
             from edge join task on task.seq = edge.task join task as other on other.seq = edge.depends_on
             where edge.task",
            "order by edge.task, edge.depends_on"
        );
        let edges = if keys.is_empty() { Vec::new() } else { tx.one(edges).await?.rows };
        let edge = |row: &Row| {
            let id = |board, n| Ok(TaskId { board: row.get(board)?, n: row.get(n)? }.to_string());
            Ok(Edge { task: id("board", "n")?, after: id("other_board", "other_n")? })
        };
        Ok(Shown {
            board,
            tasks: records.into_iter().map(|task| overdue.of(task).view(tx.now)).collect(),
            edges: edges.iter().map(edge).collect::<Result<_>>()?,
            more,
        })
    }
}
