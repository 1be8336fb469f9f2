//! Numbers that other tasks have or had, and tasks that were imported before and pruned.

use super::resource;
use crate::{
    db::{Tx, set},
    error::{Error, Result},
    ids::TaskId,
    ops::task::{
        new::{Known, at},
        plan,
    },
    params,
};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

/// Earlier tasks with the ids of the new items.
pub(super) struct Past {
    /// Items that were imported before and pruned since, and whether each was completed.
    pub gone: HashMap<usize, bool>,
}

impl Past {
    /// Refuses ids that another task has or had: a number belongs to one task for ever.
    pub async fn read(tx: &mut Tx<'_>, items: &[plan::Item], ids: &[TaskId], known: &Known) -> Result<Past> {
        let new: HashMap<String, usize> =
            (0..ids.len()).filter(|&i| known.by_item[i].is_none()).map(|i| (resource(&ids[i]), i)).collect();
        let rows =
            set(new.iter().map(|(to, &i)| json!({ "board": ids[i].board, "n": ids[i].n, "resource": to })))?;
        // One statement, so that no task is added between a read of the tasks and one of the log.
        let traces = tx
            .query(
                "select item.value ->> 'resource' as resource, task.seq, task.idempotency_key, event.kind,
                   event.to_state, event.details
                 from json_each(?1) as item
                 left join task on task.board = item.value ->> 'board'
                   and task.n = cast(item.value ->> 'n' as bigint)
                 left join event on task.seq is null and event.resource = item.value ->> 'resource'
                 where task.seq is not null or event.id is not null order by event.id",
                params![rows],
            )
            .await?;
        let (mut taken, mut gone) = (HashSet::new(), HashMap::new());
        for row in &traces {
            let i = new[&row.get::<String>("resource")?];
            if row.get::<Option<i64>>("seq")?.is_some() {
                if row.get::<Option<String>>("idempotency_key")? == items[i].key {
                    return Err(Error::raced("another import brought the same task at this moment"));
                }
                taken.insert(i);
                continue;
            }
            let details: Option<String> = row.get("details")?;
            let key = details.and_then(|text| serde_json::from_str::<Value>(&text).ok()?.get("key").cloned());
            let imported = row.get::<Option<String>>("kind")?.as_deref() == Some("task.imported");
            if imported && key == items[i].key.as_deref().map(Value::from) {
                gone.insert(i, false);
            }
            let completed = row.get::<Option<String>>("to_state")?.as_deref() == Some("completed");
            match gone.get_mut(&i) {
                Some(last) => *last = completed,
                None => drop(taken.insert(i)),
            }
        }
        if let Some(&first) = taken.iter().min() {
            return Err(taken_by_others(first, &ids[first], taken.len(), ids.len()));
        }
        Ok(Past { gone })
    }
}

fn taken_by_others(item: usize, id: &TaskId, taken: usize, of: usize) -> Error {
    let others = if taken == 1 { String::new() } else { format!(", and {} more are taken", taken - 1) };
    Error::invalid(
        &format!("{}id", at(item, of)),
        format!("is `{id}`, which is another task's number{others}"),
    )
    .with("task", id.to_string())
    .with("taken", taken)
    .hint(format!("import this board's tasks into another board: --board {0}={0}-imported", id.board))
}
