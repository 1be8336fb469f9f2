//! Adding a set of tasks, for every op that does: resolving names to items and tasks, finding existing
//! tasks, and a few statements over the whole set.

use super::{
    MAX_ATTEMPTS, PRIORITY, Record, Status, columns,
    plan::Item,
    record::{self, BY_IDS, ids_set},
};
use crate::{
    db::{Batch, Stmt, Tx, set},
    error::{Code, Error, Result},
    ids::TaskId,
    log::Event,
    params,
};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap, HashSet};

/// A dependency: another item of the batch, or an existing task.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum On {
    Item(usize),
    Task(TaskId),
}

/// The prefix of an item's fields in a refusal; empty for a single item.
pub(super) fn at(item: usize, of: usize) -> String {
    if of == 1 { String::new() } else { format!("tasks[{item}].") }
}

/// Resolves names to items and ids to tasks, and refuses cycles among the items. `called` is the field that
/// names an item.
pub(super) fn resolve(items: &[Item], called: &str) -> Result<Vec<Vec<On>>> {
    let mut names = HashMap::new();
    let mut keys = HashSet::new();
    for (i, item) in items.iter().enumerate() {
        if let Some(name) = &item.name
            && names.insert(name.as_str(), i).is_some()
        {
            return Err(Error::invalid(&format!("tasks[{i}].{called}"), format!("`{name}` is given twice")));
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
        let field = format!("{}after", at(after.len(), items.len()));
        for name in &item.after {
            let on = match names.get(name.as_str()) {
                Some(&other) => On::Item(other),
                None => On::Task(TaskId::check(&field, name)?),
            };
            if !ons.contains(&on) {
                ons.push(on);
            }
        }
        after.push(ons);
    }
    refuse_cycles(items, &after)?;
    Ok(after)
}

/// Repeatedly removes the items that wait for nothing. The items that are left form a cycle.
fn refuse_cycles(items: &[Item], after: &[Vec<On>]) -> Result<()> {
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
    let cycle: Vec<_> =
        (0..items.len()).filter(|&i| waits[i] > 0).filter_map(|i| items[i].name.as_deref()).collect();
    Err(Error::invalid("after", format!("forms a cycle through {}", cycle.join(", "))))
}

/// Existing tasks: those with a key of the request, and those that the items depend on.
pub(super) struct Known {
    pub by_item: Vec<Option<Record>>,
    pub by_id: HashMap<TaskId, Record>,
}

impl Known {
    /// Dependencies are locked, so that none is completed unnoticed: the count of a new task would be wrong
    /// for ever. `also`: more ids to look up; they need not exist.
    pub async fn read(tx: &mut Tx<'_>, items: &[Item], after: &[Vec<On>], also: &[TaskId]) -> Result<Known> {
        let mut known = Known { by_item: vec![None; items.len()], by_id: HashMap::new() };
        let keys: HashMap<&str, usize> =
            items.iter().enumerate().filter_map(|(i, item)| Some((item.key.as_deref()?, i))).collect();
        let named = |on: &On| match on {
            On::Task(id) => Some(id.clone()),
            On::Item(_) => None,
        };
        let ids: BTreeSet<TaskId> =
            after.iter().flatten().filter_map(named).chain(also.iter().cloned()).collect();
        if keys.is_empty() && ids.is_empty() {
            return Ok(known);
        }
        let by_key = set(keys.keys().map(|key| json!({ "key": key })))?;
        let by_id = ids_set(ids.iter())?;
        let mut batch = Batch::new();
        // One statement locks all of them, in the order of age like a completion of many.
        batch.add(Stmt::lock(
            "select 1 from task where seq = any(array(
               select task.seq from json_each(?1) as item
               join task on task.idempotency_key = item.value ->> 'key' and task.idempotency_key is not null
               union select task.seq from json_each(?2) as item
               join task on task.board = item.value ->> 'board' and task.n = cast(item.value ->> 'n' as bigint)))
             order by seq for key share",
            params![by_key.clone(), by_id.clone()],
        ));
        let keyed = batch.add(Stmt::read(
            columns!(
                "where task.idempotency_key in (select value ->> 'key' from json_each(?1)) order by task.seq"
            ),
            params![by_key],
        ));
        let named_ones = batch.add(Stmt::read(BY_IDS, params![by_id]));
        let mut answers = tx.send(batch).await?;
        known.by_id = record::by_id(answers.take(named_ones).rows)?;
        for row in answers.take(keyed).rows {
            let task = Record::read(row)?;
            let item = task.key.as_deref().and_then(|key| keys.get(key)).copied();
            if let Some(item) = item {
                known.by_item[item] = Some(task);
            }
        }
        for (i, ons) in after.iter().enumerate() {
            if let Some(missing) = ons.iter().filter_map(named).find(|id| !known.by_id.contains_key(id)) {
                let field = format!("{}after", at(i, items.len()));
                let message = format!("`{field}` names `{missing}`, which is not a task");
                return Err(Error::new(Code::NotFound, message)
                    .with("field", field)
                    .hint("fence list shows the tasks there are"));
            }
        }
        Ok(known)
    }

    /// The dependency of a new task. `new` answers for an item that is new itself.
    pub fn wait(&self, on: &On, new: impl FnOnce(usize) -> Option<Wait>) -> Option<Wait> {
        let there = match on {
            On::Task(id) => &self.by_id[id],
            On::Item(item) => match &self.by_item[*item] {
                Some(task) => task,
                None => return new(*item),
            },
        };
        Some(Wait { on: there.id.clone(), completed: there.status() == Status::Completed })
    }
}

/// New tasks, as rows to insert.
#[derive(Debug, Default)]
pub(super) struct NewTasks {
    tasks: Vec<Value>,
    edges: Vec<Value>,
    tags: Vec<Value>,
    events: Vec<Event>,
}

/// A dependency of a new task, and whether it is completed.
pub(super) struct Wait {
    pub on: TaskId,
    pub completed: bool,
}

impl NewTasks {
    /// Adds a task with its edges and tags. Returns the row, so that the caller can fill in its own columns.
    pub fn push(
        &mut self,
        tx: &Tx<'_>,
        id: &TaskId,
        item: &Item,
        status: Status,
        waits: impl Iterator<Item = Wait>,
    ) -> &mut Value {
        let mut waiting_on = 0;
        let mut counted = HashSet::new();
        for wait in waits {
            let edge = json!({ "board": id.board, "n": id.n, "on_board": wait.on.board, "on": wait.on.n });
            // An item may name one task twice: by a key and by its id.
            if counted.insert(wait.on) {
                waiting_on += i64::from(!wait.completed);
                self.edges.push(edge);
            }
        }
        self.tags.extend(item.tags.iter().map(|tag| json!({ "board": id.board, "n": id.n, "tag": tag })));
        self.tasks.push(json!({
            "board": id.board, "n": id.n, "title": item.title, "kind": item.kind,
            "priority": item.priority.unwrap_or(PRIORITY),
            "tags": (!item.tags.is_empty()).then(|| json!(item.tags).to_string()),
            "source": item.source, "creator": item.creator.as_ref().or(tx.caller.agent.as_ref()), "key": item.key,
            "max_attempts": item.max_attempts.unwrap_or(MAX_ATTEMPTS), "status": status.as_str(),
            "assignee": item.to, "offered_to": item.offer,
            "offered_at": item.offer.as_ref().map(|_| tx.now.0), "waiting_on": waiting_on,
            "body": item.body, "done_when": item.done_when,
            "origin": item.origin.as_ref().map(ToString::to_string),
        }));
        let last = self.tasks.len() - 1;
        &mut self.tasks[last]
    }

    pub fn event(&mut self, event: Event) {
        self.events.push(event);
    }

    pub fn has_edges(&self) -> bool {
        !self.edges.is_empty()
    }

    /// The insert of the tasks, which changes as many rows as are really new, and the writes of their other
    /// rows. A cross join keeps SQLite to the written order: it could read a whole board first, and the
    /// list again for each of its tasks (3,000 tasks: 12 s, not 0.1).
    pub fn writes(self, tx: &Tx<'_>, inserts: &Inserts) -> Result<(Stmt, Vec<Stmt>)> {
        let tasks = set(self.tasks)?;
        let insert = Stmt::write(inserts.task, params![tx.now, tasks.clone()]);
        let mut belonging =
            vec![Stmt::write(inserts.doc, params![tasks]), Event::insert_many(tx, self.events)?];
        if !self.edges.is_empty() {
            belonging.push(Stmt::write(
                "insert into edge(task, depends_on)
                 select task.seq, other.seq from json_each(?1) as item cross join task cross join task as other
                 where task.board = item.value ->> 'board' and task.n = cast(item.value ->> 'n' as bigint)
                   and other.board = item.value ->> 'on_board' and other.n = cast(item.value ->> 'on' as bigint)
                 on conflict do nothing",
                params![set(self.edges)?],
            ));
        }
        if !self.tags.is_empty() {
            belonging.push(Stmt::write(
                "insert into task_tag(task, tag, board, priority, ready)
                 select task.seq, item.value ->> 'tag', task.board, task.priority, task.ready
                 from json_each(?1) as item cross join task
                 where task.board = item.value ->> 'board' and task.n = cast(item.value ->> 'n' as bigint)
                 on conflict do nothing",
                params![set(self.tags)?],
            ));
        }
        Ok((insert, belonging))
    }
}

/// The statements that insert tasks and their texts, with the columns that only some ops fill in.
pub(super) struct Inserts {
    pub task: &'static str,
    pub doc: &'static str,
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
        let after = resolve(&[item("a", &[]), item("b", &["a", "auth-3"])], "name").unwrap();
        assert_eq!(after[1], [On::Item(0), On::Task(TaskId { board: "auth".into(), n: 3 })]);
        for (plan, says) in [
            (vec![item("a", &["a"])], "cycle"),
            (vec![item("a", &["b"]), item("b", &["c"]), item("c", &["a"]), item("d", &[])], "a, b, c"),
            (vec![item("a", &["nobody"])], "not a task id"),
            (vec![item("a", &[]), item("a", &[])], "twice"),
        ] {
            let error = resolve(&plan, "name").expect_err(says);
            assert!(error.message().contains(says), "{error}");
        }
    }
}
