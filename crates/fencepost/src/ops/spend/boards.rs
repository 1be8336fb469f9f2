//! Boards with tasks in the pool, in parts: those at a limit, and the others.

use super::usage::Closed;
use crate::{
    db::{Stmt, Tx, Value, set},
    error::Result,
    params,
};
use serde_json::json;

/// Boards that one search looks at. A search for work is limited like this only while a board is at its limit.
const BOARDS: i64 = 1000;

/// SQL: the boards whose first task of the pool has these columns, in the order of those tasks. Each is read at the head of an
/// index, so a million tasks of a board at its limit cost nothing.
macro_rules! with_first {
    ($priority:literal, $seq:literal, $from:literal) => {
        concat!(
            "select name from (select board.name, (select ",
            $priority,
            $from,
            ") as priority, (select ",
            $seq,
            $from,
            ") as seq from board where (board.name in (select value ->> 'board' from json_each(?1))) = (cast(?2 as bigint) = 1)) as head
             where seq is not null order by priority desc, seq limit ?3"
        )
    };
}

const IN_POOL: &str = with_first!(
    "task.priority",
    "task.seq",
    " from task where task.ready = 1 and task.board between board.name and board.name
      order by task.board, task.priority desc, task.seq limit 1"
);

/// The same for tasks with the tag `?4`.
const WITH_TAG: &str = with_first!(
    "task_tag.priority",
    "task_tag.task",
    " from task_tag where task_tag.ready = 1 and task_tag.tag = ?4
      and task_tag.board between board.name and board.name
      order by task_tag.board, task_tag.priority desc, task_tag.task limit 1"
);

/// The set of these boards, for `select value ->> 'board' from json_each(?N)`.
pub(crate) fn names(closed: &Closed) -> Result<Value> {
    set(closed.keys().map(|board| json!({ "board": board })))
}

fn search(closed: &Closed, are_closed: bool, tag: Option<&str>) -> Result<Stmt> {
    let (names, are_closed) = (names(closed)?, i64::from(are_closed));
    Ok(match tag {
        None => Stmt::read(IN_POOL, params![names, are_closed, BOARDS]),
        Some(tag) => Stmt::read(WITH_TAG, params![names, are_closed, BOARDS, tag]),
    })
}

async fn found(tx: &mut Tx<'_>, search: Stmt) -> Result<Vec<String>> {
    tx.one(search).await?.rows.iter().map(|row| row.get("name")).collect()
}

/// Boards below their limits with tasks in the pool, the board with the best task first.
pub(crate) async fn open(tx: &mut Tx<'_>, closed: &Closed, tag: Option<&str>) -> Result<Vec<String>> {
    found(tx, search(closed, false, tag)?).await
}

/// Boards at a limit with tasks in the pool.
pub(crate) async fn held(tx: &mut Tx<'_>, closed: &Closed, tag: Option<&str>) -> Result<Vec<String>> {
    found(tx, search(closed, true, tag)?).await
}
