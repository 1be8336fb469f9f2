//! The pool for a worker: finds the best task that fits it, without reading those that do not.

use super::Record;
use crate::{
    clock::Time,
    db::{Batch, Row, Stmt, Tx, set},
    error::Result,
    ops::task,
    params,
};

/// A poll's limits on the pool.
#[derive(Debug, Clone, Default)]
pub(super) struct Pool {
    /// Only tasks of these boards; `None` stands for all boards. Without an entry, nothing is taken from the pool.
    pub places: Vec<Option<String>>,
    /// Only tasks with this tag.
    pub tag: Option<String>,
}

impl Pool {
    /// Whether this agent takes any task of the pool.
    pub fn takes_any(&self, agent: &Record) -> bool {
        self.places == [None] && self.tag.is_none() && agent.capabilities.is_empty()
    }

    /// The best task of each part of the pool that fits, best first. Another poll may take it before this one picks it.
    /// An agent without capabilities takes any task. Other agents take tasks whose tags are all in their capabilities.
    pub(super) async fn best(&self, tx: &mut Tx<'_>, agent: &Record) -> Result<Vec<Head>> {
        if self.places.is_empty() {
            return Ok(Vec::new());
        }
        let mut heads = match (&agent.capabilities[..], &self.tag) {
            ([], None) => self.heads_of(tx, Needs::Any).await?,
            ([], Some(tag)) => self.heads_of(tx, Needs::Tag(tag.clone())).await?,
            (capabilities, None) => {
                let mut heads = self.heads_of(tx, Needs::Nothing).await?;
                heads.extend(self.with_tags(tx, capabilities).await?);
                heads
            }
            (capabilities, Some(tag)) => {
                let mut heads = self.with_tags(tx, capabilities).await?;
                heads.retain(
                    |head| matches!(&head.part.needs, Needs::Tags(tags) if tags.contains(&format!("\"{tag}\""))),
                );
                heads
            }
        };
        heads.sort_by_key(|head| (-head.priority, head.seq));
        Ok(heads)
    }

    /// The first task with these needs in each place.
    async fn heads_of(&self, tx: &mut Tx<'_>, needs: Needs) -> Result<Vec<Head>> {
        let parts: Vec<Part> =
            self.places.iter().map(|board| Part { board: board.clone(), needs: needs.clone() }).collect();
        let firsts = tx.send(parts.iter().map(Part::first).collect::<Batch>()).await?.into_vec();
        let mut heads = Vec::new();
        for (part, first) in parts.into_iter().zip(firsts) {
            let Some(row) = first.rows.first() else { continue };
            let (priority, seq, since) = (row.get("priority")?, row.get("seq")?, row.get("updated_at")?);
            heads.push(Head { part, priority, seq, since });
        }
        Ok(heads)
    }

    /// The number of tasks in the pool that fit this agent, counted up to [`COUNTED`].
    pub(super) async fn available(&self, tx: &mut Tx<'_>, agent: &Record) -> Result<i64> {
        let heads = self.best(tx, agent).await?;
        // A part has a task, or it would have no head.
        let batch: Batch = heads.iter().take(COUNTED as usize).map(|head| head.part.count()).collect();
        let counts = tx.send(batch).await?.into_vec();
        let counts =
            counts.iter().map(|answer| answer.rows[0].get::<i64>("n")).collect::<Result<Vec<_>>>()?;
        Ok(counts.iter().sum::<i64>().min(COUNTED))
    }
}

/// The first task of a part of the pool.
#[derive(Debug)]
pub(super) struct Head {
    pub part: Part,
    priority: i64,
    seq: i64,
    /// The time of its last change.
    pub since: Time,
}

/// A part of the pool that one index keeps in order.
#[derive(Debug)]
pub(super) struct Part {
    /// Only tasks of this board.
    pub board: Option<String>,
    needs: Needs,
}

/// The tags of the tasks of a part.
#[derive(Debug, Clone)]
enum Needs {
    Any,
    /// Tasks without tags.
    Nothing,
    /// Tasks with this tag, among others.
    Tag(String),
    /// Tasks with exactly these tags, as stored.
    Tags(String),
}

/// SQL: a task's board and tags as one text, as the index `task_board_needs` has it. (A name has no space.)
macro_rules! board_and_tags {
    () => {
        "(task.board || ' ' || coalesce(task.tags, ''))"
    };
}

/// The text of [`board_and_tags`]; `tags` as stored, or empty.
fn board_and(board: &str, tags: &str) -> String {
    format!("{board} {tags}")
}

/// A statement about the tasks of a part, in their order. `$select` is a macro that makes the statement from its end.
///
/// A board, and a board with tags, is given as a range and comes first in the order, for the reason that `task/claim.rs` says: so
/// PostgreSQL must use the index that begins with it. SQLite keeps the order of a cross join.
macro_rules! in_order {
    ($part:expr, $select:ident, $limit:literal) => {
        match (&$part.board, &$part.needs) {
            (None, Needs::Any) => Stmt::read(
                $select!(concat!("from task where task.ready = 1 order by task.priority desc, task.seq ", $limit)),
                params![],
            ),
            (None, Needs::Nothing) => Stmt::read(
                $select!(concat!(
                    "from task where task.ready = 1 and task.tags is null order by task.priority desc, task.seq ",
                    $limit
                )),
                params![],
            ),
            (None, Needs::Tag(tag)) => Stmt::read(
                $select!(concat!(
                    "from task_tag cross join task where task.seq = task_tag.task and task.ready = 1
                     and task_tag.ready = 1 and task_tag.tag = ?1
                     order by task_tag.priority desc, task_tag.task ",
                    $limit
                )),
                params![tag.as_str()],
            ),
            (None, Needs::Tags(tags)) => Stmt::read(
                $select!(concat!(
                    "from task where task.ready = 1 and task.tags = ?1 order by task.priority desc, task.seq ",
                    $limit
                )),
                params![tags.as_str()],
            ),
            (Some(board), Needs::Any) => Stmt::read(
                $select!(concat!(
                    "from task where task.ready = 1 and task.board between ?1 and ?1
                     order by task.board, task.priority desc, task.seq ",
                    $limit
                )),
                params![board.as_str()],
            ),
            (Some(board), Needs::Tag(tag)) => Stmt::read(
                $select!(concat!(
                    "from task_tag cross join task where task.seq = task_tag.task and task.ready = 1
                     and task_tag.ready = 1 and task_tag.tag = ?1 and task_tag.board between ?2 and ?2
                     order by task_tag.board, task_tag.priority desc, task_tag.task ",
                    $limit
                )),
                params![tag.as_str(), board.as_str()],
            ),
            (Some(board), needs @ (Needs::Nothing | Needs::Tags(_))) => Stmt::read(
                $select!(concat!(
                    "from task where task.ready = 1 and ",
                    board_and_tags!(),
                    " between ?1 and ?1 order by ",
                    board_and_tags!(),
                    ", task.priority desc, task.seq ",
                    $limit
                )),
                params![board_and(board, if let Needs::Tags(tags) = needs { tags } else { "" })],
            ),
        }
    };
}

macro_rules! position {
    ($rest:expr) => {
        concat!("select task.priority, task.seq, task.updated_at ", $rest)
    };
}

macro_rules! count {
    ($rest:expr) => {
        concat!("select count(*) as n from (select 1 as one ", $rest, ") as t")
    };
}

/// The tasks that `pool_tasks_available` counts; a larger number says no more.
const COUNTED: i64 = 1000;

impl Part {
    /// Reads the first task's position.
    fn first(&self) -> Stmt {
        in_order!(self, position, "limit 1")
    }

    /// Locks and reads the first task that no other transaction has locked.
    pub fn pick(&self) -> Stmt {
        use task::unheld;
        in_order!(self, unheld, "limit 1 /*pg for update of task skip locked*/")
    }

    /// Counts the tasks, up to [`COUNTED`].
    fn count(&self) -> Stmt {
        in_order!(self, count, "limit 1000")
    }
}

/// The whole pool: see [`Part::pick`].
pub(super) fn pick_any() -> Stmt {
    Part { board: None, needs: Needs::Any }.pick()
}

/// Limit on the tag lists that one search tries in each place.
const LISTS: usize = 4096;

/// Reads for each tag list of `?1` its first task, and whether there are longer lists that begin with it.
const LISTS_OF_POOL: &str = "
    select item.value ->> 'list' as list, item.value ->> 'from' as begun,
      (select seq from task where ready = 1 and tags = item.value ->> 'list'
       order by priority desc, seq limit 1) as seq,
      (select priority from task where ready = 1 and tags = item.value ->> 'list'
       order by priority desc, seq limit 1) as priority,
      (select updated_at from task where ready = 1 and tags = item.value ->> 'list'
       order by priority desc, seq limit 1) as updated_at,
      (select 1 from task where ready = 1 and tags >= item.value ->> 'from'
       and tags < item.value ->> 'to' limit 1) as longer
    from json_each(?1) as item";

/// One column of [`LISTS_OF_BOARD`], from a list's first task.
macro_rules! of_first {
    ($column:literal) => {
        concat!(
            "(select ",
            $column,
            " from task where ready = 1 and ",
            board_and_tags!(),
            " between ?2 || (item.value ->> 'list') and ?2 || (item.value ->> 'list') order by ",
            board_and_tags!(),
            ", priority desc, seq limit 1) as ",
            $column
        )
    };
}

/// The same for one board. `?2` is the board, as [`board_and`] writes it before the tags.
const LISTS_OF_BOARD: &str = concat!(
    "select item.value ->> 'list' as list, item.value ->> 'from' as begun, ",
    of_first!("seq"),
    ", ",
    of_first!("priority"),
    ", ",
    of_first!("updated_at"),
    ", (select 1 from task where ready = 1 and ",
    board_and_tags!(),
    " >= ?2 || (item.value ->> 'from') and ",
    board_and_tags!(),
    " < ?2 || (item.value ->> 'to') limit 1) as longer from json_each(?1) as item"
);

impl Pool {
    /// The first task of every stored tag list that contains only these tags. Tag lists are stored as text, so lists with
    /// the same prefix are neighbours in the index. Each prefix that exists is extended by one tag at a time. Tasks that
    /// need other tags are never read, even if there are a million of them.
    async fn with_tags(&self, tx: &mut Tx<'_>, capabilities: &[String]) -> Result<Vec<Head>> {
        let mut heads = Vec::new();
        let mut searches: Vec<Search<'_>> = self.places.iter().map(Search::new).collect();
        while !searches.is_empty() {
            let batch =
                searches.iter_mut().map(|search| search.next(capabilities)).collect::<Result<Batch>>()?;
            let answers = tx.send(batch).await?.into_vec();
            for (search, answer) in searches.iter_mut().zip(answers) {
                heads.extend(search.take(&answer.rows)?);
            }
            searches.retain(|search| !search.prefixes.is_empty() && search.tried < LISTS);
        }
        Ok(heads)
    }
}

/// A search for tag lists in one place.
struct Search<'p> {
    board: &'p Option<String>,
    /// The beginnings of lists that exist.
    prefixes: Vec<String>,
    tried: usize,
}

impl<'p> Search<'p> {
    fn new(board: &'p Option<String>) -> Self {
        Self { board, prefixes: vec!["[".into()], tried: 0 }
    }

    /// Looks up the lists that are longer by one tag.
    fn next(&mut self, capabilities: &[String]) -> Result<Stmt> {
        let longer = self.prefixes.iter().flat_map(|prefix| {
            // The list itself, and the range of the longer lists that begin with it: `-` is the character after `,`.
            capabilities.iter().map(move |tag| {
                let list = format!("{prefix}\"{tag}\"");
                serde_json::json!({ "list": format!("{list}]"), "from": format!("{list},"), "to": format!("{list}-") })
            })
        });
        let longer: Vec<_> = longer.take(LISTS).collect();
        self.tried += longer.len();
        Ok(match self.board {
            None => Stmt::read(LISTS_OF_POOL, params![set(longer)?]),
            Some(board) => Stmt::read(LISTS_OF_BOARD, params![set(longer)?, board_and(board, "")]),
        })
    }

    /// Takes the answer: the first task of each list.
    fn take(&mut self, rows: &[Row]) -> Result<Vec<Head>> {
        self.prefixes.clear();
        let mut heads = Vec::new();
        for row in rows {
            if row.get::<Option<i64>>("longer")?.is_some() {
                self.prefixes.push(row.get("begun")?);
            }
            let Some(seq) = row.get::<Option<i64>>("seq")? else { continue };
            let part = Part { board: self.board.clone(), needs: Needs::Tags(row.get("list")?) };
            heads.push(Head { part, seq, priority: row.get("priority")?, since: row.get("updated_at")? });
        }
        Ok(heads)
    }
}
