//! Many items in several calls: what an item waits for is sent before it, or with it.

use fencepost::{Error, Result, task::import::Item};
use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap, HashSet},
};

/// As many as one call takes.
pub const ITEMS: usize = 10_000;
/// As much as one call should hold: a server takes no more than 2 MiB, unless its settings say so.
pub const BYTES: usize = 1792 * 1024;

/// One call: the items that it brings, and those of earlier calls that they wait for.
#[derive(Debug, Default)]
pub struct Call {
    pub own: Vec<usize>,
    before: BTreeSet<usize>,
}

impl Call {
    /// What was sent before is known by its key, whatever it was found to be; its name is enough.
    pub fn tasks(&self, items: &[Item]) -> Vec<Item> {
        let stub = |&i: &usize| Item {
            id: items[i].id.clone(),
            title: items[i].title.clone(),
            key: items[i].key.clone(),
            ..Item::default()
        };
        self.own.iter().map(|&i| items[i].clone()).chain(self.before.iter().map(stub)).collect()
    }

    /// Which item the call's nth is.
    pub fn item(&self, n: usize) -> usize {
        self.own.iter().chain(&self.before).nth(n).copied().unwrap_or(n)
    }

    pub fn brings(&self, items: &[Item], id: &str) -> bool {
        self.before.iter().all(|&i| items[i].id != id)
    }
}

/// Cuts the items into calls.
pub fn calls(items: &[Item]) -> Result<Vec<Call>> {
    cut(items, ITEMS, BYTES)
}

fn cut(items: &[Item], most: usize, bytes: usize) -> Result<Vec<Call>> {
    let mut ids = HashSet::new();
    if let Some(twice) = items.iter().position(|item| !ids.insert(item.id.as_str())) {
        let field = format!("tasks[{twice}].id");
        return Err(Error::invalid(&field, format!("`{}` is given twice", items[twice].id)));
    }
    let sizes: Vec<usize> = items.iter().map(size).collect();
    if items.len() <= most && sizes.iter().sum::<usize>() <= bytes {
        return Ok(vec![Call { own: (0..items.len()).collect(), before: BTreeSet::new() }]);
    }
    let order = sorted(items).map_err(|circle| {
        let names: Vec<_> = circle.iter().map(|&i| items[i].id.as_str()).collect();
        Error::invalid("after", format!("goes round in a circle through {}", names.join(", ")))
    })?;
    let at = index(items);
    let mut calls: Vec<Call> = Vec::new();
    let (mut call_of, mut filled) = (HashMap::new(), 0);
    for i in order {
        let waits = || items[i].after.iter().filter_map(|id| at.get(id.as_str()).copied());
        let elsewhere = |calls: &[Call], call_of: &HashMap<usize, usize>| -> Vec<usize> {
            waits().filter(|other| call_of[other] + 1 != calls.len()).collect()
        };
        let fits = calls.last().is_some_and(|call| {
            let more =
                elsewhere(&calls, &call_of).iter().filter(|other| !call.before.contains(other)).count();
            call.own.len() + call.before.len() + more < most && filled + sizes[i] <= bytes
        });
        if !fits {
            calls.push(Call::default());
            filled = 0;
        }
        let before = elsewhere(&calls, &call_of);
        call_of.insert(i, calls.len() - 1);
        if let Some(call) = calls.last_mut() {
            call.own.push(i);
            call.before.extend(before);
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

/// What is waited for comes first, otherwise as given; or a circle, each of which waits for the next.
pub fn sorted(items: &[Item]) -> Result<Vec<usize>, Vec<usize>> {
    let at = index(items);
    let waits: Vec<BTreeSet<usize>> = items
        .iter()
        .map(|item| item.after.iter().filter_map(|id| at.get(id.as_str()).copied()).collect())
        .collect();
    let mut dependents = vec![Vec::new(); items.len()];
    for (i, others) in waits.iter().enumerate() {
        others.iter().for_each(|&other| dependents[other].push(i));
    }
    let mut left: Vec<usize> = waits.iter().map(BTreeSet::len).collect();
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
        Some(first) => Err(circle(first, &waits, &left)),
    }
}

/// Takes waits away until none goes round in a circle. Gives whose, and what is to be said of it.
pub fn untangle(items: &mut [Item]) -> Vec<(usize, String)> {
    let mut said = Vec::new();
    while let Err(circle) = sorted(items) {
        let (last, first) = (circle[circle.len() - 1], items[circle[0]].id.clone());
        let through: Vec<_> = circle.iter().map(|&i| items[i].id.as_str()).collect();
        let through = through.join(" after ");
        said.push((last, format!("no longer waits for {first}: it went round in a circle, {through}")));
        items[last].after.retain(|id| *id != first);
    }
    said
}

/// Whatever is left waits for something that is left: whoever follows that comes round.
fn circle(first: usize, waits: &[BTreeSet<usize>], left: &[usize]) -> Vec<usize> {
    let mut path = vec![first];
    loop {
        let here = path[path.len() - 1];
        let next = waits[here].iter().copied().find(|&other| left[other] > 0).unwrap_or(here);
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

    /// Each call as `own | before`.
    fn shown(items: &[Item], most: usize) -> Vec<String> {
        let ids = |of: &mut dyn Iterator<Item = &usize>| {
            of.map(|&i| items[i].id.as_str()).collect::<Vec<_>>().join(" ")
        };
        let call = |call: &Call| format!("{} | {}", ids(&mut call.own.iter()), ids(&mut call.before.iter()));
        cut(items, most, usize::MAX).unwrap().iter().map(call).collect()
    }

    #[test]
    fn what_is_waited_for_is_sent_before_or_with_it() {
        let items = [
            item("a-1", &["a-5"]),
            item("a-2", &[]),
            item("a-3", &["a-1", "a-2", "x-1"]),
            item("a-4", &[]),
            item("a-5", &["a-4"]),
        ];
        assert_eq!(shown(&items, 5), ["a-1 a-2 a-3 a-4 a-5 | "]);
        assert_eq!(shown(&items, 4), ["a-2 a-4 a-5 a-1 | ", "a-3 | a-1 a-2"]);
        // The last waits for two of an earlier call, so it takes three places.
        assert_eq!(shown(&items, 3), ["a-2 a-4 a-5 | ", "a-1 | a-5", "a-3 | a-1 a-2"]);
        assert_eq!(cut(&items, 9, 60).unwrap().len(), 5);
    }

    #[test]
    fn circles_and_doubles_are_found() {
        let items =
            [item("a-1", &["a-2"]), item("a-2", &["a-3"]), item("a-3", &["a-4", "a-2"]), item("a-4", &[])];
        assert_eq!(sorted(&items), Err(vec![1, 2]));
        let error = cut(&items, 2, usize::MAX).unwrap_err();
        assert_eq!(error.message(), "`after` goes round in a circle through a-2, a-3");
        assert_eq!(sorted(&[item("a-1", &["a-1"])]), Err(vec![0]));
        let error = cut(&[item("a-1", &[]), item("a-1", &[])], 9, usize::MAX).unwrap_err();
        assert_eq!(error.message(), "`tasks[1].id` `a-1` is given twice");
    }
}
