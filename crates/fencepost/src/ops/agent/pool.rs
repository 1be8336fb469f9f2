//! The pool for a worker: finds the best task that fits it, without reading those that do not.

use super::Record;
use crate::{
    clock::Time,
    db::{Stmt, Tx, set},
    error::Result,
    ops::task,
    params,
};

/// A poll's limits on the pool.
#[derive(Debug, Clone, Default)]
pub(super) struct Pool {
    /// Only tasks with this tag.
    pub tag: Option<String>,
    /// Take nothing from the pool.
    pub off: bool,
}

impl Pool {
    /// Whether this agent takes any task of the pool.
    pub fn takes_any(&self, agent: &Record) -> bool {
        !self.off && self.tag.is_none() && agent.capabilities.is_empty()
    }

    /// The best task of each part of the pool that fits, best first. Another poll may take it before this one picks it.
    /// An agent without capabilities takes any task. Other agents take tasks whose tags are all in their capabilities.
    pub(super) async fn best(&self, tx: &mut Tx<'_>, agent: &Record) -> Result<Vec<Head>> {
        if self.off {
            return Ok(Vec::new());
        }
        let mut heads = match (&agent.capabilities[..], &self.tag) {
            ([], None) => head_of(tx, Part::All).await?,
            ([], Some(tag)) => head_of(tx, Part::Tag(tag.clone())).await?,
            (capabilities, None) => {
                let mut heads = head_of(tx, Part::Plain).await?;
                heads.extend(with_tags(tx, capabilities).await?);
                heads
            }
            (capabilities, Some(tag)) => {
                let mut heads = with_tags(tx, capabilities).await?;
                heads.retain(
                    |head| matches!(&head.part, Part::Tags(tags) if tags.contains(&format!("\"{tag}\""))),
                );
                heads
            }
        };
        heads.sort_by_key(|head| (-head.priority, head.seq));
        Ok(heads)
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
pub(super) enum Part {
    All,
    /// Tasks without tags.
    Plain,
    /// Tasks with this tag, among others.
    Tag(String),
    /// Tasks with exactly these tags, as stored.
    Tags(String),
}

impl Part {
    /// Reads the first task's position.
    fn first(&self) -> Stmt {
        match self {
            Part::All => Stmt::read(
                "select priority, seq, updated_at from task where ready = 1 order by priority desc, seq limit 1",
                params![],
            ),
            Part::Plain => Stmt::read(
                "select priority, seq, updated_at from task where ready = 1 and tags is null
                 order by priority desc, seq limit 1",
                params![],
            ),
            // SQLite keeps the order of a cross join.
            Part::Tag(tag) => Stmt::read(
                "select task.priority, task.seq, task.updated_at from task_tag cross join task
                 where task.seq = task_tag.task and task.ready = 1 and task_tag.ready = 1 and task_tag.tag = ?1
                 order by task_tag.priority desc, task_tag.task limit 1",
                params![tag.as_str()],
            ),
            Part::Tags(tags) => Stmt::read(
                "select priority, seq, updated_at from task where ready = 1 and tags = ?1
                 order by priority desc, seq limit 1",
                params![tags.as_str()],
            ),
        }
    }

    /// Locks and reads the first task that no other transaction has locked.
    pub fn pick(&self) -> Stmt {
        match self {
            Part::All => Stmt::read(
                task::unheld!(
                    "from task where task.ready = 1 order by task.priority desc, task.seq limit 1
                     /*pg for update of task skip locked*/"
                ),
                params![],
            ),
            Part::Plain => Stmt::read(
                task::unheld!(
                    "from task where task.ready = 1 and task.tags is null
                     order by task.priority desc, task.seq limit 1 /*pg for update of task skip locked*/"
                ),
                params![],
            ),
            Part::Tag(tag) => Stmt::read(
                task::unheld!(
                    "from task_tag cross join task where task.seq = task_tag.task and task.ready = 1
                     and task_tag.ready = 1 and task_tag.tag = ?1
                     order by task_tag.priority desc, task_tag.task limit 1 /*pg for update of task skip locked*/"
                ),
                params![tag.as_str()],
            ),
            Part::Tags(tags) => Stmt::read(
                task::unheld!(
                    "from task where task.ready = 1 and task.tags = ?1
                     order by task.priority desc, task.seq limit 1 /*pg for update of task skip locked*/"
                ),
                params![tags.as_str()],
            ),
        }
    }
}

/// The first task of one part.
async fn head_of(tx: &mut Tx<'_>, part: Part) -> Result<Vec<Head>> {
    let rows = tx.one(part.first()).await?.rows;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let (priority, seq) = (row.get("priority")?, row.get("seq")?);
    Ok(vec![Head { part, priority, seq, since: row.get("updated_at")? }])
}

/// Limit on the tag lists that one search tries.
const LISTS: usize = 4096;

/// The first task of every stored tag list that contains only these tags. Tag lists are stored as text, so lists with
/// the same prefix are neighbours in the index. Each prefix that exists is extended by one tag at a time. Tasks that
/// need other tags are never read, even if there are a million of them.
async fn with_tags(tx: &mut Tx<'_>, capabilities: &[String]) -> Result<Vec<Head>> {
    let (mut heads, mut tried) = (Vec::new(), 0);
    let mut prefixes = vec![String::from("[")];
    while !prefixes.is_empty() && tried < LISTS {
        let longer = prefixes.iter().flat_map(|prefix| {
            // The list itself, and the range of the longer lists that begin with it: `-` is the character after `,`.
            capabilities.iter().map(move |tag| {
                let list = format!("{prefix}\"{tag}\"");
                serde_json::json!({ "list": format!("{list}]"), "from": format!("{list},"), "to": format!("{list}-") })
            })
        });
        let longer: Vec<_> = longer.take(LISTS).collect();
        tried += longer.len();
        let rows = tx
            .query(
                "select item.value ->> 'list' as list, item.value ->> 'from' as begun,
                   (select seq from task where ready = 1 and tags = item.value ->> 'list'
                    order by priority desc, seq limit 1) as seq,
                   (select priority from task where ready = 1 and tags = item.value ->> 'list'
                    order by priority desc, seq limit 1) as priority,
                   (select updated_at from task where ready = 1 and tags = item.value ->> 'list'
                    order by priority desc, seq limit 1) as updated_at,
                   (select 1 from task where ready = 1 and tags >= item.value ->> 'from'
                    and tags < item.value ->> 'to' limit 1) as longer
                 from json_each(?1) as item",
                params![set(longer)?],
            )
            .await?;
        prefixes.clear();
        for row in &rows {
            if row.get::<Option<i64>>("longer")?.is_some() {
                prefixes.push(row.get("begun")?);
            }
            let Some(seq) = row.get::<Option<i64>>("seq")? else { continue };
            let part = Part::Tags(row.get("list")?);
            heads.push(Head { part, seq, priority: row.get("priority")?, since: row.get("updated_at")? });
        }
    }
    Ok(heads)
}

/// The number of tasks in the pool, counted up to 1000.
pub(super) async fn available(tx: &mut Tx<'_>) -> Result<i64> {
    let sql = "select count(*) as n from (select 1 from task where ready = 1 limit 1000) as t";
    tx.query(sql, params![]).await?[0].get("n")
}
