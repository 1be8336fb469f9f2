use super::{Lock, MAX_ATTEMPTS, PRIORITY, Record, Status, Task, columns, full, load_set};
use crate::{
    before::Before,
    error::{Code, Error, Result},
    event::Event,
    names::{
        ATTEMPTS_MAX, BODY_MAX, DEPENDENCIES_MAX, NAME_MAX, PLAN_MAX, TEXT_MAX, TITLE_MAX, TaskId, check,
    },
    op::{Access, Op},
    params,
    tx::{Stmt, Tx, set},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Add many tasks at once, in one transaction: all or none. They may depend on each other by local names.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The board they go to (`main` unless said); made if it is not there.
    #[serde(default)]
    pub board: Option<String>,
    pub tasks: Vec<Item>,
    /// Asking again with the same id gives the first answer.
    #[serde(default)]
    pub request: Option<String>,
}

/// A task to be added.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// What the others of this plan call it in `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// When it counts as done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_when: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// 0 to 100, higher first (50 unless said).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Where it came from: any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creator: Option<String>,
    /// Assign it to this agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Offer it to this agent, who may accept or reject it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<String>,
    /// What must be completed first: names in this plan, or ids of tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// How often it may be tried (3 unless said).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    /// A second task with this key is not added; the first is the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Planned {
    /// In the order in which they were given.
    pub tasks: Vec<Task>,
    /// Those of them that were there already, by their key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub existing: Vec<String>,
}

impl Op for Plan {
    const NAME: &'static str = "task/plan";
    const ACCESS: Access = Access::Agent;
    type Reply = Planned;

    fn before(&self) -> Before {
        Before::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Planned> {
        check::request(self.request.as_deref())?;
        check::range("tasks", self.tasks.len() as i64, 1, PLAN_MAX as i64)?;
        insert(tx, self.board.as_deref().unwrap_or(super::add::BOARD), self.tasks).await
    }
}

/// A dependency: another item of the plan, or a task that is there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum On {
    Item(usize),
    Task(TaskId),
}

/// Adds tasks to a board: a range of numbers, then a few statements over the whole set.
pub(super) async fn insert(tx: &mut Tx<'_>, board: &str, items: Vec<Item>) -> Result<Planned> {
    check::plain_name("board", board)?;
    for (i, item) in items.iter().enumerate() {
        item.check(if items.len() == 1 { String::new() } else { format!("tasks[{i}].") })?;
    }
    let after = resolve(&items)?;
    if tx.opening.is_repeat("task.added", None)? {
        return repeated(tx, &items).await;
    }
    let known = Known::read(tx, &items, &after).await?;
    let fresh: Vec<usize> = (0..items.len()).filter(|i| known.by_item[*i].is_none()).collect();
    let existing = known.by_item.iter().flatten().map(|task| task.id.to_string()).collect();
    if fresh.is_empty() {
        let ids: Vec<_> = known.by_item.iter().flatten().map(|task| task.id.clone()).collect();
        return Ok(Planned { tasks: by_ids(tx, &ids).await?, existing });
    }
    let first = take_numbers(tx, board, fresh.len() as i64).await?;
    let number: HashMap<usize, i64> = fresh.iter().zip(first..).map(|(&i, n)| (i, n)).collect();

    let (mut tasks, mut edges, mut tags, mut events) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for &i in &fresh {
        let (item, n) = (&items[i], number[&i]);
        let mut waiting_on = 0;
        let mut counted = HashSet::new();
        for on in &after[i] {
            let there = match on {
                On::Item(other) => known.by_item[*other].as_ref(),
                On::Task(id) => Some(&known.by_id[id]),
            };
            let other = match (on, there) {
                (On::Item(other), None) => TaskId { board: board.into(), n: number[other] },
                (_, Some(task)) => task.id.clone(),
                (On::Task(id), None) => id.clone(),
            };
            // One task can go by two names: its item's, by a key, and its id.
            if !counted.insert(other.clone()) {
                continue;
            }
            waiting_on += i64::from(there.is_none_or(|task| task.status != Status::Completed));
            edges.push(serde_json::json!({ "n": n, "board": other.board, "on": other.n }));
        }
        let status = item.status();
        tags.extend(item.tags.iter().map(|tag| serde_json::json!({ "n": n, "tag": tag })));
        let mut event = Event::new("task.added", format!("task/{board}-{n}"));
        (event.to, event.agent) = (Some(status.as_str()), item.creator.clone());
        events.push(event);
        tasks.push(serde_json::json!({
            "n": n, "title": item.title, "kind": item.kind, "priority": item.priority.unwrap_or(PRIORITY),
            "tags": (!item.tags.is_empty()).then(|| serde_json::json!(item.tags).to_string()),
            "source": item.source, "creator": item.creator.as_ref().or(tx.caller.agent.as_ref()), "key": item.key,
            "max_attempts": item.max_attempts.unwrap_or(MAX_ATTEMPTS), "status": status.as_str(),
            "assignee": item.to, "offered_to": item.offer,
            "offered_at": item.offer.as_ref().map(|_| tx.now.0), "waiting_on": waiting_on,
            "body": item.body, "done_when": item.done_when,
            "origin": item.origin.as_ref().map(ToString::to_string),
        }));
    }
    let ids: Vec<TaskId> = (0..items.len())
        .map(|i| match &known.by_item[i] {
            Some(task) => task.id.clone(),
            None => TaskId { board: board.into(), n: number[&i] },
        })
        .collect();
    let alone = edges.is_empty() && fresh.len() == items.len();
    let mut statements = writes(tx, board, tasks, edges, tags, events)?;
    statements.push(select(&ids)?);
    let mut answers = tx.pipeline(statements).await?;
    if answers[0].affected < fresh.len() as u64 {
        return Err(Error::again("a task with the same idempotency key was added at this moment"));
    }
    let added = answers.pop().unwrap_or_default().rows.into_iter().map(Record::read);
    let added = added.collect::<Result<Vec<_>>>()?;
    if !alone {
        return Ok(Planned { tasks: full(tx, added, vec![]).await?.1, existing });
    }
    // Nothing is known of them but what was given: no need to ask, while the board's counter is held.
    let views = added.into_iter().zip(items).map(|(task, item)| Task {
        body: item.body,
        done_when: item.done_when,
        origin: item.origin,
        ..task.view(tx.now)
    });
    Ok(Planned { tasks: views.collect(), existing })
}

/// The board's counter comes last in the lock order, and is held only until the commit.
async fn take_numbers(tx: &mut Tx<'_>, board: &str, count: i64) -> Result<i64> {
    let rows = tx
        .query(
            "insert into board(name, next_n, created_at) values (?1, ?2 + 1, ?3)
             on conflict (name) do update set next_n = board.next_n + ?2 returning next_n",
            params![board, count, tx.now],
        )
        .await?;
    Ok(rows[0].get::<i64>("next_n")? - count)
}

fn writes(
    tx: &Tx<'_>,
    board: &str,
    tasks: Vec<serde_json::Value>,
    edges: Vec<serde_json::Value>,
    tags: Vec<serde_json::Value>,
    events: Vec<Event>,
) -> Result<Vec<Stmt>> {
    let set_of_tasks = set(tasks)?;
    // A cross join keeps SQLite to the order that is written: it would take the whole board first, and read the list
    // anew for each of its tasks (3,000 tasks on one board: 12 s instead of 0.1).
    let mut statements = vec![
        Stmt::new(
            "insert into task(board, n, title, kind, priority, tags, source, creator, idempotency_key, max_attempts,
               status, assignee, offered_to, offered_at, waiting_on, created_at, updated_at)
             select ?1, cast(value ->> 'n' as bigint), value ->> 'title', value ->> 'kind',
               cast(value ->> 'priority' as bigint), value ->> 'tags', value ->> 'source', value ->> 'creator',
               value ->> 'key', cast(value ->> 'max_attempts' as bigint), value ->> 'status', value ->> 'assignee',
               value ->> 'offered_to', cast(value ->> 'offered_at' as bigint),
               cast(value ->> 'waiting_on' as bigint), cast(?2 as bigint), cast(?2 as bigint)
             from json_each(?3) where true order by key
             on conflict (idempotency_key) where idempotency_key is not null do nothing",
            params![board, tx.now, set_of_tasks.clone()],
        ),
        Stmt::new(
            "insert into task_doc(task, body, done_when, origin)
             select task.seq, item.value ->> 'body', item.value ->> 'done_when', item.value ->> 'origin'
             from json_each(?2) as item cross join task
             where task.board = ?1 and task.n = cast(item.value ->> 'n' as bigint)",
            params![board, set_of_tasks],
        ),
        Event::insert_many(tx, events)?,
    ];
    if !edges.is_empty() {
        statements.push(Stmt::new(
            "insert into edge(task, depends_on)
             select task.seq, other.seq from json_each(?2) as item cross join task cross join task as other
             where task.board = ?1 and task.n = cast(item.value ->> 'n' as bigint)
               and other.board = item.value ->> 'board' and other.n = cast(item.value ->> 'on' as bigint)
             on conflict do nothing",
            params![board, set(edges)?],
        ));
    }
    if !tags.is_empty() {
        statements.push(Stmt::new(
            "insert into task_tag(task, tag, board, priority, ready)
             select task.seq, item.value ->> 'tag', task.board, task.priority, task.ready
             from json_each(?2) as item cross join task
             where task.board = ?1 and task.n = cast(item.value ->> 'n' as bigint)
             on conflict do nothing",
            params![board, set(tags)?],
        ));
    }
    Ok(statements)
}

impl Item {
    fn status(&self) -> Status {
        match (&self.to, &self.offer) {
            (Some(_), _) => Status::Pending,
            (None, Some(_)) => Status::Offered,
            (None, None) => Status::Unassigned,
        }
    }

    fn check(&self, at: String) -> Result<()> {
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
            check::text(&field("origin"), &origin.to_string(), BODY_MAX)?;
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

/// Turns names into items and ids into tasks, and refuses circles among the items.
fn resolve(items: &[Item]) -> Result<Vec<Vec<On>>> {
    let mut names = HashMap::new();
    let mut keys = HashSet::new();
    for (i, item) in items.iter().enumerate() {
        if let Some(name) = &item.name
            && names.insert(name.as_str(), i).is_some()
        {
            return Err(Error::invalid(&format!("tasks[{i}].name"), format!("`{name}` is given twice")));
        }
        if let Some(key) = &item.key
            && !keys.insert(key)
        {
            return Err(Error::invalid(&format!("tasks[{i}].key"), format!("`{key}` is given twice")));
        }
    }
    let mut after = Vec::with_capacity(items.len());
    for item in items {
        let mut ons = Vec::new();
        for name in &item.after {
            let on = match names.get(name.as_str()) {
                Some(&other) => On::Item(other),
                None => On::Task(TaskId::check("after", name)?),
            };
            if !ons.contains(&on) {
                ons.push(on);
            }
        }
        after.push(ons);
    }
    refuse_circles(items, &after)?;
    Ok(after)
}

/// Takes away what waits for nothing, again and again; what is left goes round in a circle.
fn refuse_circles(items: &[Item], after: &[Vec<On>]) -> Result<()> {
    let mut waits: Vec<usize> =
        after.iter().map(|ons| ons.iter().filter(|on| matches!(on, On::Item(_))).count()).collect();
    let mut dependents = vec![Vec::new(); items.len()];
    for (i, ons) in after.iter().enumerate() {
        for on in ons {
            if let On::Item(other) = on {
                dependents[*other].push(i);
            }
        }
    }
    let mut free: Vec<usize> = (0..items.len()).filter(|&i| waits[i] == 0).collect();
    let mut seen = 0;
    while let Some(i) = free.pop() {
        seen += 1;
        for &dependent in &dependents[i] {
            waits[dependent] -= 1;
            if waits[dependent] == 0 {
                free.push(dependent);
            }
        }
    }
    if seen == items.len() {
        return Ok(());
    }
    let circle: Vec<_> =
        (0..items.len()).filter(|&i| waits[i] > 0).filter_map(|i| items[i].name.as_deref()).collect();
    Err(Error::invalid("after", format!("goes round in a circle through {}", circle.join(", "))))
}

/// What of the request is there already: tasks with its keys, and the tasks it depends on.
struct Known {
    by_item: Vec<Option<Record>>,
    by_id: HashMap<TaskId, Record>,
}

impl Known {
    /// What is depended on is locked, so that it cannot be completed unseen: the count of what a new task
    /// waits for would be wrong for ever.
    async fn read(tx: &mut Tx<'_>, items: &[Item], after: &[Vec<On>]) -> Result<Known> {
        let mut known = Known { by_item: vec![None; items.len()], by_id: HashMap::new() };
        let keys: HashMap<&str, usize> =
            items.iter().enumerate().filter_map(|(i, item)| Some((item.key.as_deref()?, i))).collect();
        if !keys.is_empty() {
            let rows = set(keys.keys().map(|key| serde_json::json!({ "key": key })))?;
            let sql = columns!(
                "where task.idempotency_key in (select value ->> 'key' from json_each(?1))
                 order by task.seq /*pg for share of task*/"
            );
            for row in tx.query(sql, params![rows]).await? {
                let task = Record::read(row)?;
                let item = task.key.as_deref().and_then(|key| keys.get(key)).copied();
                if let Some(item) = item {
                    known.by_item[item] = Some(task);
                }
            }
        }
        let named = after.iter().flatten().filter_map(|on| match on {
            On::Task(id) => Some(id),
            On::Item(_) => None,
        });
        let ids: BTreeSet<&TaskId> = named.collect();
        if !ids.is_empty() {
            known.by_id = load_set(tx, ids.iter().copied(), Lock::ToDependOn).await?;
            if let Some(missing) = ids.iter().find(|id| !known.by_id.contains_key(id)) {
                return Err(Error::new(
                    Code::NotFound,
                    format!("`after` names `{missing}`, which is not a task"),
                )
                .with("field", "after")
                .hint("fence list shows the tasks there are"));
            }
        }
        Ok(known)
    }
}

/// Tasks by their ids, in that order.
async fn by_ids(tx: &mut Tx<'_>, ids: &[TaskId]) -> Result<Vec<Task>> {
    let records = tx.one(select(ids)?).await?.rows;
    let records = records.into_iter().map(Record::read).collect::<Result<Vec<_>>>()?;
    Ok(full(tx, records, vec![]).await?.1)
}

fn select(ids: &[TaskId]) -> Result<Stmt> {
    if let [id] = ids {
        return Ok(Stmt::new(columns!("where task.board = ?1 and task.n = ?2"), params![&id.board, id.n]));
    }
    let rows = set(ids.iter().map(|id| serde_json::json!({ "board": id.board, "n": id.n })))?;
    let sql = columns!(
        "join json_each(?1) as item
           on task.board = item.value ->> 'board' and task.n = cast(item.value ->> 'n' as bigint)
         order by item.key"
    );
    Ok(Stmt::new(sql, params![rows]))
}

/// The same request again: the tasks that it added, and those that it found by their keys, as they are now.
async fn repeated(tx: &mut Tx<'_>, items: &[Item]) -> Result<Planned> {
    let known = Known::read(tx, items, &[]).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str, after: &[&str]) -> Item {
        Item {
            name: Some(name.into()),
            title: name.into(),
            after: after.iter().map(ToString::to_string).collect(),
            ..Item::default()
        }
    }

    #[test]
    fn names_are_resolved_and_circles_refused() {
        let after = resolve(&[item("a", &[]), item("b", &["a", "auth-3"])]).unwrap();
        assert_eq!(after[1], [On::Item(0), On::Task(TaskId { board: "auth".into(), n: 3 })]);
        for (plan, says) in [
            (vec![item("a", &["a"])], "circle"),
            (vec![item("a", &["b"]), item("b", &["c"]), item("c", &["a"]), item("d", &[])], "a, b, c"),
            (vec![item("a", &["nobody"])], "not a task id"),
            (vec![item("a", &[]), item("a", &[])], "twice"),
        ] {
            let error = resolve(&plan).expect_err(says);
            assert!(error.message().contains(says), "{error}");
        }
    }
}
