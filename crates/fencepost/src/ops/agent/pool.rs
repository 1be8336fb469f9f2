//! What a worker takes from the pool: the best task that fits it, without looking at those that do not.

use super::Record;
use crate::{
    clock::Time,
    db::{Stmt, Tx, set},
    error::Result,
    ops::task,
    params,
};

/// What a worker takes from the pool.
#[derive(Debug, Clone, Default)]
pub(super) struct Pool {
    /// Only with this tag.
    pub tag: Option<String>,
    /// Not at all.
    pub off: bool,
}

impl Pool {
    /// Does this agent take anything that is in it?
    pub fn is_whole(&self, agent: &Record) -> bool {
        !self.off && self.tag.is_none() && agent.capabilities.is_empty()
    }

    /// The best task that fits, of each kind that there is: the best of them first, with the statement that picks it.
    /// (Which of them is free for this poll is known when one is picked.) An agent that names no capabilities takes
    /// anything; any other takes what asks for nothing else.
    pub(super) async fn best(&self, tx: &mut Tx<'_>, agent: &Record) -> Result<Vec<Head>> {
        if self.off {
            return Ok(Vec::new());
        }
        let mut heads = match (&agent.capabilities[..], &self.tag) {
            ([], None) => one(tx, Of::All).await?,
            ([], Some(tag)) => one(tx, Of::Tag(tag.clone())).await?,
            (capabilities, None) => {
                let mut heads = one(tx, Of::Plain).await?;
                heads.extend(needing(tx, capabilities).await?);
                heads
            }
            (capabilities, Some(tag)) => {
                let mut heads = needing(tx, capabilities).await?;
                heads.retain(
                    |head| matches!(&head.of, Of::Tags(tags) if tags.contains(&format!("\"{tag}\""))),
                );
                heads
            }
        };
        heads.sort_by_key(|head| (-head.priority, head.seq));
        Ok(heads)
    }
}

/// The first of a part of the pool.
#[derive(Debug)]
pub(super) struct Head {
    pub of: Of,
    priority: i64,
    seq: i64,
    /// Since when it has been as it is.
    pub since: Time,
}

/// A part of the pool that an index has in order.
#[derive(Debug)]
pub(super) enum Of {
    All,
    /// What asks for nothing.
    Plain,
    /// What has this tag, among others.
    Tag(String),
    /// What has exactly these, as they are stored.
    Tags(String),
}

impl Of {
    /// Reads where the first of it stands.
    fn first(&self) -> Stmt {
        match self {
            Of::All => Stmt::read(
                "select priority, seq, updated_at from task where ready = 1 order by priority desc, seq limit 1",
                params![],
            ),
            Of::Plain => Stmt::read(
                "select priority, seq, updated_at from task where ready = 1 and tags is null
                 order by priority desc, seq limit 1",
                params![],
            ),
            // SQLite keeps to the order of a cross join.
            Of::Tag(tag) => Stmt::read(
                "select task.priority, task.seq, task.updated_at from task_tag cross join task
                 where task.seq = task_tag.task and task.ready = 1 and task_tag.ready = 1 and task_tag.tag = ?1
                 order by task_tag.priority desc, task_tag.task limit 1",
                params![tag.as_str()],
            ),
            Of::Tags(tags) => Stmt::read(
                "select priority, seq, updated_at from task where ready = 1 and tags = ?1
                 order by priority desc, seq limit 1",
                params![tags.as_str()],
            ),
        }
    }

    /// Locks and reads the first of it that no other transaction has locked.
    pub fn pick(&self) -> Stmt {
        match self {
            Of::All => Stmt::read(
                task::unheld!(
                    "from task where task.ready = 1 order by task.priority desc, task.seq limit 1
                     /*pg for update of task skip locked*/"
                ),
                params![],
            ),
            Of::Plain => Stmt::read(
                task::unheld!(
                    "from task where task.ready = 1 and task.tags is null
                     order by task.priority desc, task.seq limit 1 /*pg for update of task skip locked*/"
                ),
                params![],
            ),
            Of::Tag(tag) => Stmt::read(
                task::unheld!(
                    "from task_tag cross join task where task.seq = task_tag.task and task.ready = 1
                     and task_tag.ready = 1 and task_tag.tag = ?1
                     order by task_tag.priority desc, task_tag.task limit 1 /*pg for update of task skip locked*/"
                ),
                params![tag.as_str()],
            ),
            Of::Tags(tags) => Stmt::read(
                task::unheld!(
                    "from task where task.ready = 1 and task.tags = ?1
                     order by task.priority desc, task.seq limit 1 /*pg for update of task skip locked*/"
                ),
                params![tags.as_str()],
            ),
        }
    }
}

/// The first of a part that is not told apart any further.
async fn one(tx: &mut Tx<'_>, of: Of) -> Result<Vec<Head>> {
    let rows = tx.one(of.first()).await?.rows;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let (priority, seq) = (row.get("priority")?, row.get("seq")?);
    Ok(vec![Head { of, priority, seq, since: row.get("updated_at")? }])
}

/// How many lists of tags are followed. Only those that there are, and that an agent can do as far as they go.
const LISTS: usize = 4096;

/// The first task of every list of tags that consists of these alone. Lists are stored as text, so those that begin alike
/// lie side by side: each beginning that there is is tried with one more tag, and what needs anything else is never
/// looked at, be it a million tasks or a million lists.
async fn needing(tx: &mut Tx<'_>, capabilities: &[String]) -> Result<Vec<Head>> {
    let (mut heads, mut tried) = (Vec::new(), 0);
    let mut begun = vec![String::from("[")];
    while !begun.is_empty() && tried < LISTS {
        let longer = begun.iter().flat_map(|begun| {
            // The list as it is, and what lies between it and any longer one: `,` comes right before `-`.
            capabilities.iter().map(move |tag| {
                let list = format!("{begun}\"{tag}\"");
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
        begun.clear();
        for row in &rows {
            if row.get::<Option<i64>>("longer")?.is_some() {
                begun.push(row.get("begun")?);
            }
            let Some(seq) = row.get::<Option<i64>>("seq")? else { continue };
            let of = Of::Tags(row.get("list")?);
            heads.push(Head { of, seq, priority: row.get("priority")?, since: row.get("updated_at")? });
        }
    }
    Ok(heads)
}

/// How many could be had from the pool, up to a thousand.
pub(super) async fn available(tx: &mut Tx<'_>) -> Result<i64> {
    let sql = "select count(*) as n from (select 1 from task where ready = 1 limit 1000) as t";
    tx.query(sql, params![]).await?[0].get("n")
}
