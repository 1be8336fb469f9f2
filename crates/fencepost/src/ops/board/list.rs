use crate::{
    caller::Access,
    clock::Time,
    db::{Batch, Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    lease::overdue::Overdue,
    ops::task,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// List the boards, with the number of their tasks in each state.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Boards {
    pub boards: Vec<Board>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Board {
    pub name: String,
    pub created_at: Time,
    /// Tasks by state, as `list` shows it: a task with unfinished dependencies is `blocked`.
    pub tasks: BTreeMap<String, i64>,
    /// The number of tasks that could be claimed now.
    pub ready: i64,
}

impl Op for List {
    const NAME: &'static str = "board/list";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Boards;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Boards> {
        let overdue = task::overdue(tx, None).await?;
        Ok(Boards { boards: List::of(tx, None, &overdue).await? })
    }
}

impl List {
    /// All boards, or the board of this name.
    pub(super) async fn of(
        tx: &mut Tx<'_>,
        name: Option<&str>,
        overdue: &Overdue<task::Record>,
    ) -> Result<Vec<Board>> {
        let mut batch = Batch::new();
        let names = batch.add(Stmt::read(
            "select name, created_at from board where cast(?1 as text) is null or name = ?1 order by name",
            params![name],
        ));
        let counts = batch.add(Stmt::read(
            concat!(
                "select board, state, count(*) as n, count(case when ready = 1 then 1 end) as ready
                 from (select board, ",
                task::state_now!("?3"),
                " as state, case when ",
                task::is_ready!("?3"),
                " then 1 else 0 end as ready
                   from task where (cast(?1 as text) is null or board = ?1)
                   and seq not in (select cast(value ->> 'k' as bigint) from json_each(?2))) as task
                 group by board, state"
            ),
            params![name, overdue.keys(), tx.now],
        ));
        let mut answers = tx.send(batch).await?;
        let mut boards = Vec::new();
        for row in answers.take(names).rows {
            let (name, created_at) = (row.get("name")?, row.get("created_at")?);
            boards.push(Board { name, created_at, tasks: BTreeMap::new(), ready: 0 });
        }
        let mut add = |name: &str, state: String, n: i64, ready: i64| {
            if let Some(board) = boards.iter_mut().find(|board| board.name == name) {
                *board.tasks.entry(state).or_default() += n;
                board.ready += ready;
            }
        };
        for row in answers.take(counts).rows {
            add(&row.get::<String>("board")?, row.get("state")?, row.get("n")?, row.get("ready")?);
        }
        for task in overdue.iter() {
            add(&task.id.board, task.state().as_str().into(), 1, i64::from(task.ready() > 0));
        }
        Ok(boards)
    }
}
