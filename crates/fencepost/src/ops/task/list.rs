use super::{Record, State, Task, columns, is_ready, load, not_found, overdue, state_now};
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
    ids::TaskId,
    limits::check,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// List tasks, oldest first, a page at a time.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    #[serde(default)]
    pub board: Option<String>,
    /// Only tasks in this state, as `list` and `board show` show it.
    #[serde(default)]
    pub status: Option<State>,
    /// Only tasks that could be claimed now, by anyone or by their assignee.
    #[serde(default)]
    pub ready: bool,
    /// Only tasks that are not finished.
    #[serde(default)]
    pub open: bool,
    #[serde(default)]
    pub assignee: Option<String>,
    #[serde(default)]
    pub tag: Option<String>,
    /// Only tasks after this one: the last task of the previous page.
    #[serde(default)]
    pub after: Option<String>,
    /// At most this many (default 100, at most 1000).
    #[serde(default)]
    pub limit: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tasks {
    pub tasks: Vec<Task>,
    /// There is another page.
    pub more: bool,
}

impl Op for List {
    const NAME: &'static str = "task/list";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = r#"{"board":"auth"}"#;
    const READS: bool = true;
    type Reply = Tasks;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Tasks> {
        let limit = self.limit.unwrap_or(100);
        check::range("limit", limit, 1, 1000)?;
        check::optional_name("board", self.board.as_deref())?;
        check::optional_name("assignee", self.assignee.as_deref())?;
        check::optional_name("tag", self.tag.as_deref())?;
        let after = self.after.as_deref().map(|id| TaskId::check("after", id)).transpose()?;
        let from = match &after {
            Some(id) => load(tx, id).await?.ok_or_else(|| not_found(id).with("field", "after"))?.seq,
            None => 0,
        };
        let overdue = overdue(tx, self.board.as_deref()).await?;
        let rows = tx
            .query(
                columns!(concat!(
                    "where (cast(?1 as text) is null or task.board = ?1)
                     and (cast(?2 as text) is null or ?2 = ",
                    state_now!("?8"),
                    ")
                     and (?9 = 0 or (",
                    is_ready!("?8"),
                    "))
                     and (?10 = 0 or task.status not in ('completed', 'failed', 'cancelled'))
                     and (cast(?3 as text) is null or task.assignee = ?3)
                     and (cast(?4 as text) is null
                       or exists (select 1 from task_tag where task_tag.task = task.seq and task_tag.tag = ?4))
                     and task.seq > ?5
                     and task.seq not in (select cast(value ->> 'k' as bigint) from json_each(?7))
                     order by task.seq limit ?6"
                )),
                params![
                    self.board.as_deref(),
                    self.status.map(State::as_str),
                    self.assignee.as_deref(),
                    self.tag.as_deref(),
                    from,
                    limit + 1,
                    overdue.keys(),
                    tx.now,
                    i64::from(self.ready),
                    i64::from(self.open)
                ],
            )
            .await?;
        let found = rows.into_iter().map(Record::read).collect::<Result<Vec<_>>>()?;
        let (tasks, more) = overdue.page(found, |task| task.seq > from && self.fits(task), limit);
        let tasks: Vec<Task> = tasks.into_iter().map(|task| task.view(tx.now)).collect();
        if let (true, Some(board)) = (tasks.is_empty(), &self.board) {
            crate::ops::board::require(tx, board).await?;
        }
        Ok(Tasks { tasks, more })
    }
}

impl List {
    /// The same filter as the statement's, which covers the tasks that are not overdue.
    fn fits(&self, task: &Record) -> bool {
        self.board.as_ref().is_none_or(|board| task.id.board == *board)
            && self.status.is_none_or(|state| task.state() == state)
            && (!self.ready || task.ready() > 0)
            && (!self.open || !task.status().is_finished())
            && self.assignee.as_ref().is_none_or(|agent| task.assignee.as_ref() == Some(agent))
            && self.tag.as_ref().is_none_or(|tag| task.tags.contains(tag))
    }
}
