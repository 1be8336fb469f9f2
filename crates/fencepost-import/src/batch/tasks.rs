//! Tasks in several calls. A task's dependencies are sent before the task, or with it.

use super::{BYTES, ITEMS};
use crate::{
    json_lines::refused_item,
    target::{self, Target},
};
use fencepost::{
    Error, Result,
    task::import::{Import, Imported, Item},
};
use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap, HashSet},
};

/// Sends the tasks in as few calls as possible. `locate` adds to the refusal of one task where the task stands in its
/// source.
pub async fn send(
    target: &dyn Target,
    items: &[Item],
    dry_run: bool,
    locate: &dyn Fn(Error, usize) -> Error,
) -> Result<Imported> {
    if items.is_empty() {
        return Ok(Imported::default());
    }
    let located = |error: Error, item: &dyn Fn(usize) -> usize| {
        let refused = refused_item(&error, items.len()).map(item).filter(|item| *item < items.len());
        refused.map_or_else(|| error.clone(), |item| locate(error.clone(), item))
    };
    let calls = calls(items).map_err(|error| located(error, &|at| at))?;
    let mut sum = Imported::default();
    let mut sent = 0;
    for (n, call) in calls.iter().enumerate() {
        target.progress(&format!("importing: {sent} of {} tasks", items.len()));
        let request = target.request().map(|id| if n == 0 { id } else { format!("{id}.{n}") });
        let op = Import { tasks: call.tasks(items), dry_run, request };
        let reply = target::call(target, op).await.map_err(|error| {
            let error = located(error, &|at| call.item(at));
            if sum.imported.is_empty() || dry_run {
                error
            } else {
                partly_imported(error, sum.imported.len())
            }
        })?;
        let is_new = |id: &str| call.is_new(items, id);
        sum.imported.extend(reply.imported.into_iter().filter(|id| is_new(id)));
        sum.existing.extend(reply.existing.into_iter().filter(|task| is_new(&task.id)));
        sum.gone.extend(reply.gone.into_iter().filter(|id| is_new(id)));
        sent += call.new.len();
    }
    Ok(sum)
}

fn partly_imported(error: Error, imported: usize) -> Error {
    let hint = error.hint_text().map(|hint| format!("; {hint}")).unwrap_or_default();
    error.hint(format!("{imported} tasks before it were imported; import again to go on{hint}"))
}

/// One call: the tasks that it imports, and those of earlier calls that they depend on.
#[derive(Debug, Default)]
struct Call {
    new: Vec<usize>,
    earlier: BTreeSet<usize>,
}

impl Call {
    /// The engine knows a task of an earlier call by its key, so id and title are enough of it.
    fn tasks(&self, items: &[Item]) -> Vec<Item> {
        let stub = |&i: &usize| Item {
            id: items[i].id.clone(),
            title: items[i].title.clone(),
            key: items[i].key.clone(),
            ..Item::default()
        };
        self.new.iter().map(|&i| items[i].clone()).chain(self.earlier.iter().map(stub)).collect()
    }

    /// Which item the nth task of this call is.
    fn item(&self, n: usize) -> usize {
        self.new.iter().chain(&self.earlier).nth(n).copied().unwrap_or(n)
    }

    fn is_new(&self, items: &[Item], id: &str) -> bool {
        self.earlier.iter().all(|&i| items[i].id != id)
    }
}

fn calls(items: &[Item]) -> Result<Vec<Call>> {
    split(items, ITEMS, BYTES)
}

fn split(items: &[Item], most: usize, bytes: usize) -> Result<Vec<Call>> {
    let mut ids = HashSet::new();
    if let Some(twice) = items.iter().position(|item| !ids.insert(item.id.as_str())) {
        let field = format!("tasks[{twice}].id");
        return Err(Error::invalid(&field, format!("`{}` is given twice", items[twice].id)));
    }
    let sizes: Vec<usize> = items.iter().map(size).collect();
    if items.len() <= most && sizes.iter().sum::<usize>() <= bytes {
        return Ok(vec![Call { new: (0..items.len()).collect(), earlier: BTreeSet::new() }]);
    }
    let order = sorted(items).map_err(|cycle| {
        let names: Vec<_> = cycle.iter().map(|&i| items[i].id.as_str()).collect();
        Error::invalid("after", format!("has a cycle: {}", names.join(", ")))
    })?;
    let at = index(items);
    let mut calls: Vec<Call> = Vec::new();
    let (mut call_of, mut filled) = (HashMap::new(), 0);
    for i in order {
        let dependencies = || items[i].after.iter().filter_map(|id| at.get(id.as_str()).copied());
        let elsewhere = |calls: &[Call], call_of: &HashMap<usize, usize>| -> Vec<usize> {
            dependencies().filter(|other| call_of[other] + 1 != calls.len()).collect()
        };
        let fits = calls.last().is_some_and(|call| {
            let more =
                elsewhere(&calls, &call_of).iter().filter(|other| !call.earlier.contains(other)).count();
            call.new.len() + call.earlier.len() + more < most && filled + sizes[i] <= bytes
        });
        if !fits {
            calls.push(Call::default());
            filled = 0;
        }
        let earlier = elsewhere(&calls, &call_of);
        call_of.insert(i, calls.len() - 1);
        if let Some(call) = calls.last_mut() {
            call.new.push(i);
            call.earlier.extend(earlier);
        }
        filled += sizes[i];
    }
    Ok(calls)
}

fn size(item: &Item) -> usize {
    serde_json::to_string(item).map_or(0, |text| text.len())
}

fn index(items: &[Item]) -> HashMap<&str, usize> {
    items.iter().enumerate().map(|(i, item)| (item.id.as_str(), i)).collect()
}

/// The items with dependencies first, otherwise in the given order; or a cycle, in which each depends on the next.
fn sorted(items: &[Item]) -> Result<Vec<usize>, Vec<usize>> {
    let at = index(items);
    let dependencies: Vec<BTreeSet<usize>> = items
        .iter()
        .map(|item| item.after.iter().filter_map(|id| at.get(id.as_str()).copied()).collect())
        .collect();
    let mut dependents = vec![Vec::new(); items.len()];
    for (i, others) in dependencies.iter().enumerate() {
        others.iter().for_each(|&other| dependents[other].push(i));
    }
    let mut left: Vec<usize> = dependencies.iter().map(BTreeSet::len).collect();
    let mut free: BinaryHeap<Reverse<usize>> =
        (0..items.len()).filter(|&i| left[i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(items.len());
    while let Some(Reverse(i)) = free.pop() {
        order.push(i);
        for &dependent in &dependents[i] {
            left[dependent] -= 1;
            if left[dependent] == 0 {
                free.push(Reverse(dependent));
            }
        }
    }
    match (0..items.len()).find(|&i| left[i] > 0) {
        None => Ok(order),
        Some(first) => Err(cycle(first, &dependencies, &left)),
    }
}

/// Removes dependencies until there is no cycle. Returns the items that lost one, each with the text to report.
pub fn break_cycles(items: &mut [Item]) -> Vec<(usize, String)> {
    let mut removed = Vec::new();
    while let Err(cycle) = sorted(items) {
        let (last, first) = (cycle[cycle.len() - 1], items[cycle[0]].id.clone());
        let through: Vec<_> = cycle.iter().map(|&i| items[i].id.as_str()).collect();
        let through = through.join(" after ");
        removed.push((last, format!("no longer waits for {first}: that was a cycle, {through}")));
        items[last].after.retain(|id| *id != first);
    }
    removed
}

/// Every item that is left depends on another one that is left, so following them leads round a cycle.
fn cycle(first: usize, dependencies: &[BTreeSet<usize>], left: &[usize]) -> Vec<usize> {
    let mut path = vec![first];
    loop {
        let here = path[path.len() - 1];
        let next = dependencies[here].iter().copied().find(|&other| left[other] > 0).unwrap_or(here);
        if let Some(start) = path.iter().position(|&i| i == next) {
            return path.split_off(start);
        }
        path.push(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(id: &str, after: &[&str]) -> Item {
        Item {
            id: id.into(),
            title: id.into(),
            after: after.iter().map(ToString::to_string).collect(),
            ..Item::default()
        }
    }

    /// Each call as `new | earlier`.
    fn shown(items: &[Item], most: usize) -> Vec<String> {
        let ids = |of: &mut dyn Iterator<Item = &usize>| {
            of.map(|&i| items[i].id.as_str()).collect::<Vec<_>>().join(" ")
        };
        let call = |call: &Call| format!("{} | {}", ids(&mut call.new.iter()), ids(&mut call.earlier.iter()));
        split(items, most, usize::MAX).unwrap().iter().map(call).collect()
    }

    #[test]
    fn dependencies_are_sent_before_a_task_or_with_it() {
        let items = [
            item("a-1", &["a-5"]),
            item("a-2", &[]),
            item("a-3", &["a-1", "a-2", "x-1"]),
            item("a-4", &[]),
            item("a-5", &["a-4"]),
        ];
        assert_eq!(shown(&items, 5), ["a-1 a-2 a-3 a-4 a-5 | "]);
        assert_eq!(shown(&items, 4), ["a-2 a-4 a-5 a-1 | ", "a-3 | a-1 a-2"]);
        // The last task depends on two of an earlier call, so it counts as three.
        assert_eq!(shown(&items, 3), ["a-2 a-4 a-5 | ", "a-1 | a-5", "a-3 | a-1 a-2"]);
        assert_eq!(split(&items, 9, 60).unwrap().len(), 5);
    }

    #[test]
    fn cycles_and_repeated_ids_are_found() {
        let items =
            [item("a-1", &["a-2"]), item("a-2", &["a-3"]), item("a-3", &["a-4", "a-2"]), item("a-4", &[])];
        assert_eq!(sorted(&items), Err(vec![1, 2]));
        let error = split(&items, 2, usize::MAX).unwrap_err();
        assert_eq!(error.message(), "`after` has a cycle: a-2, a-3");
        assert_eq!(sorted(&[item("a-1", &["a-1"])]), Err(vec![0]));
        let error = split(&[item("a-1", &[]), item("a-1", &[])], 9, usize::MAX).unwrap_err();
        assert_eq!(error.message(), "`tasks[1].id` `a-1` is given twice");
    }
}
