use super::{
    PRIORITY, Record, Status, Task, columns, full,
    new::{Inserts, Known, NewTasks, Wait, at, resolve},
};
use crate::{
    caller::Access,
    db::{Batch, Stmt, Tx, numbered, set},
    engine::{
        op::{OnRetry, Op, erased},
        prelude::Prelude,
    },
    error::{Error, Result},
    ids::TaskId,
    limits::{ATTEMPTS_MAX, BODY_MAX, DEPENDENCIES_MAX, NAME_MAX, PLAN_MAX, TEXT_MAX, TITLE_MAX, check},
    log::{Event, cause},
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// Add many tasks at once, in one transaction: all or none. They may depend on each other by local names.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The board (default `main`). It is created if it does not exist.
    #[serde(default)]
    pub board: Option<String>,
    pub tasks: Vec<Item>,
    /// Request id: repeating the call with the same id returns the first reply.
    #[serde(default)]
    pub request: Option<String>,
}

/// A task to be added.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// The name by which other items of this plan refer to it in `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The acceptance criteria.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_when: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// 0 to 100, higher first (default 50).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The task's origin: any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creator: Option<String>,
    /// Assign the task to this agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Offer the task to this agent, which may accept or reject it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<String>,
    /// Names in this plan, or ids of tasks, that must be completed first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// The most attempts (default 3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    /// Idempotency key: if a task has this key already, none is added, and the reply is that task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Planned {
    /// In the order of the request.
    pub tasks: Vec<Task>,
    /// The ids of the tasks that existed already, by their key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub existing: Vec<String>,
}

impl Op for Plan {
    const NAME: &'static str = "task/plan";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"tasks":[{"title":"write the parser"}]}"#;
    type Reply = Planned;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Planned> {
        check::request(self.request.as_deref())?;
        check::range("tasks", self.tasks.len() as i64, 1, PLAN_MAX as i64)?;
        insert(tx, self.board.as_deref().unwrap_or(super::add::BOARD), self.tasks).await
    }
}

/// Adds tasks to a board.
pub(crate) async fn insert(tx: &mut Tx<'_>, board: &str, items: Vec<Item>) -> Result<Planned> {
    check_items(tx, board, &items)?;
    insert_checked(tx, board, items).await
}

/// Adds tasks for an assignee that is no agent: only the op that knows it claims them.
pub(crate) async fn insert_for(
    tx: &mut Tx<'_>,
    board: &str,
    mut items: Vec<Item>,
    assignee: &str,
) -> Result<Planned> {
    check_items(tx, board, &items)?;
    items.iter_mut().for_each(|item| item.to = Some(assignee.to_owned()));
    insert_checked(tx, board, items).await
}

fn check_items(tx: &Tx<'_>, board: &str, items: &[Item]) -> Result<()> {
    check::plain_name("board", board)?;
    for (i, item) in items.iter().enumerate() {
        item.check(at(i, items.len()))?;
        tx.caller.acting_as("creator", item.creator.as_deref())?;
    }
    Ok(())
}

/// Takes a range of numbers, and inserts by a few statements over the whole set.
async fn insert_checked(tx: &mut Tx<'_>, board: &str, items: Vec<Item>) -> Result<Planned> {
    let after = resolve(&items, "name")?;
    if tx.opening.is_repeat("task.added", None)? {
        return repeated(tx, &items).await;
    }
    let known = Known::read(tx, &items, &after, &[]).await?;
    let fresh: Vec<usize> = (0..items.len()).filter(|i| known.by_item[*i].is_none()).collect();
    let existing = known.by_item.iter().flatten().map(|task| task.id.to_string()).collect();
    if fresh.is_empty() {
        let ids: Vec<_> = known.by_item.iter().flatten().map(|task| task.id.clone()).collect();
        return Ok(Planned { tasks: by_ids(tx, &ids).await?, existing });
    }
    let first = take_numbers(tx, board, fresh.len() as i64).await?;
    let number: HashMap<usize, i64> = fresh.iter().zip(first..).map(|(&i, n)| (i, n)).collect();

    let ids: Vec<TaskId> = (0..items.len())
        .map(|i| match &known.by_item[i] {
            Some(task) => task.id.clone(),
            None => TaskId { board: board.into(), n: number[&i] },
        })
        .collect();
    let mut new_tasks = NewTasks::default();
    for &i in &fresh {
        let (item, status) = (&items[i], items[i].status());
        let new = |other: usize| Some(Wait { on: ids[other].clone(), completed: false });
        let waits = after[i].iter().filter_map(|on| known.wait(on, new));
        new_tasks.push(tx, &ids[i], item, status, waits);
        let mut event = Event::new("task.added", format!("task/{}", ids[i]));
        (event.to, event.agent) = (Some(status.as_str()), item.creator.clone());
        event.topic =
            Some(item.to.as_deref().or(item.offer.as_deref()).map_or_else(Topic::pool, Topic::agent));
        new_tasks.event(event);
    }
    let alone = !new_tasks.has_edges() && fresh.len() == items.len();
    let (insert, belonging) = new_tasks.writes(tx, &INSERTS)?;
    let mut batch = Batch::new();
    let inserted = batch.add(insert);
    batch.extend(belonging);
    let added = batch.add(select(&ids)?);
    let mut answers = tx.send(batch).await.map_err(|error| match error.is_duplicate() {
        true => Error::raced("a task with the same number was imported at this moment"),
        false => error,
    })?;
    if answers.affected(inserted) < fresh.len() as u64 {
        return Err(Error::raced("a task with the same idempotency key was added at this moment"));
    }
    let added = answers.take(added).rows.into_iter().map(Record::read);
    let added = added.collect::<Result<Vec<_>>>()?;
    cause::record(tx, None, fresh.iter().map(|&i| format!("task/{}", ids[i]))).await?;
    if !alone {
        return Ok(Planned { tasks: full(tx, added).await?, existing });
    }
    // A new task holds only the fields of the request: build the views without a query, while the board's counter
    // is locked.
    let views = added.into_iter().zip(items).map(|(task, item)| Task {
        body: item.body,
        done_when: item.done_when,
        origin: item.origin,
        ..task.view(tx.now)
    });
    Ok(Planned { tasks: views.collect(), existing })
}

const INSERTS: Inserts = Inserts {
    task: concat!(
        "insert into task(/*pg seq,*/ board, n, title, kind, priority, tags, source, creator, idempotency_key,
           max_attempts, status, assignee, offered_to, offered_at, waiting_on, updated_at, created_at)
         /*pg overriding system value*/
         select /*pg number,*/ value ->> 'board', cast(value ->> 'n' as bigint), value ->> 'title', value ->> 'kind',
           cast(value ->> 'priority' as bigint), value ->> 'tags', value ->> 'source', value ->> 'creator',
           value ->> 'key', cast(value ->> 'max_attempts' as bigint), value ->> 'status', value ->> 'assignee',
           value ->> 'offered_to', cast(value ->> 'offered_at' as bigint), cast(value ->> 'waiting_on' as bigint),
           cast(?1 as bigint), cast(?1 as bigint)
         from ",
        numbered!("task", "seq"),
        " where true order by /*pg value ->> 'key',*/ key
         on conflict (idempotency_key) where idempotency_key is not null do nothing"
    ),
    doc: "insert into task_doc(task, body, done_when, origin)
          select task.seq, item.value ->> 'body', item.value ->> 'done_when', item.value ->> 'origin'
          from json_each(?1) as item cross join task
          where task.board = item.value ->> 'board' and task.n = cast(item.value ->> 'n' as bigint)",
};

/// Takes this many numbers of a board.
fn next_numbers(board: &str, count: i64) -> Stmt {
    Stmt::write(
        "update board set next_n = next_n + ?2 where name = ?1 returning next_n - ?2",
        params![board, count],
    )
}

/// The board's counter comes last in the lock order, and is locked only until the commit.
async fn take_numbers(tx: &mut Tx<'_>, board: &str, count: i64) -> Result<i64> {
    if let Some(first) = tx.allocate_numbers(next_numbers(board, count)).await {
        return Ok(first);
    }
    let rows = tx
        .execute_returning(
            "insert into board(name, next_n, created_at) values (?1, ?2 + 1, ?3)
             on conflict (name) do update set next_n = board.next_n + ?2 returning next_n",
            params![board, count, tx.now],
        )
        .await?;
    Ok(rows[0].get::<i64>("next_n")? - count)
}

impl Item {
    fn status(&self) -> Status {
        match (&self.to, &self.offer) {
            (Some(_), _) => Status::Pending,
            (None, Some(_)) => Status::Offered,
            (None, None) => Status::Unassigned,
        }
    }

    pub(super) fn check(&self, at: String) -> Result<()> {
        let field = |name: &str| format!("{at}{name}");
        check::line(&field("title"), &self.title, TITLE_MAX)?;
        check::optional_text(&field("body"), self.body.as_deref(), BODY_MAX)?;
        check::optional_text(&field("done_when"), self.done_when.as_deref(), TEXT_MAX)?;
        check::optional_text(&field("source"), self.source.as_deref(), NAME_MAX)?;
        check::optional_name(&field("kind"), self.kind.as_deref())?;
        check::optional_name(&field("creator"), self.creator.as_deref())?;
        check::optional_name(&field("to"), self.to.as_deref())?;
        check::optional_name(&field("offer"), self.offer.as_deref())?;
        check::range(&field("priority"), self.priority.unwrap_or(PRIORITY), 0, 100)?;
        check::range(&field("max_attempts"), self.max_attempts.unwrap_or(1), 1, ATTEMPTS_MAX)?;
        check::tags(&field("tags"), &self.tags)?;
        if let Some(key) = &self.key {
            check::line(&field("key"), key, NAME_MAX)?;
        }
        if let Some(origin) = &self.origin {
            check::json(&field("origin"), &origin.to_string(), BODY_MAX)?;
        }
        if self.to.is_some() && self.offer.is_some() {
            return Err(Error::invalid(
                &field("offer"),
                "and `to` cannot both be given: assign it or offer it",
            ));
        }
        if self.after.len() > DEPENDENCIES_MAX {
            return Err(Error::invalid(
                &field("after"),
                format!("names {} tasks; at most {DEPENDENCIES_MAX} are allowed", self.after.len()),
            ));
        }
        Ok(())
    }
}

/// Tasks by their ids, in that order.
async fn by_ids(tx: &mut Tx<'_>, ids: &[TaskId]) -> Result<Vec<Task>> {
    let records = tx.one(select(ids)?).await?.rows;
    let records = records.into_iter().map(Record::read).collect::<Result<Vec<_>>>()?;
    full(tx, records).await
}

fn select(ids: &[TaskId]) -> Result<Stmt> {
    if let [id] = ids {
        return Ok(Stmt::read(columns!("where task.board = ?1 and task.n = ?2"), params![&id.board, id.n]));
    }
    let rows = set(ids.iter().map(|id| serde_json::json!({ "board": id.board, "n": id.n })))?;
    let sql = columns!(
        "join json_each(?1) as item
           on task.board = item.value ->> 'board' and task.n = cast(item.value ->> 'n' as bigint)
         order by item.key"
    );
    Ok(Stmt::read(sql, params![rows]))
}

/// The reply to a repeated request: the tasks that it added, and those that it found by their keys, as they are now.
async fn repeated(tx: &mut Tx<'_>, items: &[Item]) -> Result<Planned> {
    let known = Known::read(tx, items, &[], &[]).await?;
    let added = tx.opening.repeat.iter().filter(|did| did.kind == "task.added");
    let added: HashSet<TaskId> =
        added.filter_map(|did| did.resource.strip_prefix("task/")?.parse().ok()).collect();
    let keyed: HashSet<&TaskId> = known.by_item.iter().flatten().map(|task| &task.id).collect();
    let mut others: Vec<&TaskId> = added.iter().filter(|id| !keyed.contains(id)).collect();
    others.sort();
    let mut others = others.into_iter();
    let ids: Vec<TaskId> = known
        .by_item
        .iter()
        .filter_map(|task| task.as_ref().map(|task| &task.id).or_else(|| others.next()).cloned())
        .collect();
    let existing = known.by_item.iter().flatten().filter(|task| !added.contains(&task.id));
    let existing = existing.map(|task| task.id.to_string()).collect();
    Ok(Planned { tasks: by_ids(tx, &ids).await?, existing })
}
