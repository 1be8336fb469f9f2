use crate::{
    clock::Time,
    error::Result,
    op::{Access, Op, erased},
    params,
    tx::{Stmt, Tx},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// List the boards, with how many tasks are in which state.
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
    /// Tasks by status.
    pub tasks: BTreeMap<String, i64>,
    /// How many could be claimed now.
    pub ready: i64,
}

impl Op for List {
    const NAME: &'static str = "board/list";
    const ACCESS: Access = Access::Reader;
    const READS: bool = true;
    type Reply = Boards;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Boards> {
        Ok(Boards { boards: List::of(tx, None).await? })
    }
}

impl List {
    /// All boards, or the one of this name.
    pub(super) async fn of(tx: &mut Tx<'_>, name: Option<&str>) -> Result<Vec<Board>> {
        let answers = tx
            .pipeline(vec![
                Stmt::new(
                    "select name, created_at from board where cast(?1 as text) is null or name = ?1 order by name",
                    params![name],
                ),
                Stmt::new(
                    "select board, status, count(*) as n, count(case when ready > 0 then 1 end) as ready
                     from task where cast(?1 as text) is null or board = ?1 group by board, status",
                    params![name],
                ),
            ])
            .await?;
        let mut boards = Vec::new();
        for row in &answers[0].rows {
            let (name, created_at) = (row.get("name")?, row.get("created_at")?);
            boards.push(Board { name, created_at, tasks: BTreeMap::new(), ready: 0 });
        }
        for row in &answers[1].rows {
            let name: String = row.get("board")?;
            if let Some(board) = boards.iter_mut().find(|board| board.name == name) {
                board.tasks.insert(row.get("status")?, row.get("n")?);
                board.ready += row.get::<i64>("ready")?;
            }
        }
        Ok(boards)
    }
}
