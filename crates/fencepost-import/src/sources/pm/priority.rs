//! The order of a sprint's tasks, as priorities.
//!
//! In a sprint the lower number comes first, and numbers may be fractions: only the order counts. Tasks for later come after
//! all tasks for now, and tasks without a number after those with one. A fleet has priorities from 0 to 100, the higher
//! first, so it can tell 101 ranks apart.

use crate::{names::plain, sqlite::Row};
use serde_json::Value;
use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
};

/// Tasks with a number get 90, 89, …, or begin at 100 if so many would reach 50. Tasks without one get 50, the engine's
/// default, and tasks for later get less.
const FIRST: i64 = 90;
const TOP: i64 = 100;
const PLAIN: i64 = 50;
const LATER: [(&str, i64); 3] = [("next", 40), ("later", 30), ("icebox", 20)];

/// The rank of a task in its sprint: its horizon (0 is now), and its number.
#[derive(Debug, Clone, Copy)]
struct Rank {
    horizon: usize,
    number: Option<f64>,
}

impl Rank {
    fn of(row: &Row) -> Self {
        let horizon = plain(row.get("horizon")).to_lowercase();
        let later = LATER.iter().position(|(name, _)| *name == horizon);
        let number = row.get("priority").and_then(Value::as_f64);
        Self { horizon: later.map_or(0, |later| later + 1), number }
    }

    fn cmp(&self, other: &Self) -> Ordering {
        let number = |rank: &Self| rank.number.unwrap_or(f64::INFINITY);
        self.horizon.cmp(&other.horizon).then(number(self).total_cmp(&number(other)))
    }

    /// Its priority if no other task ranks before it. If one does, the priority is below that one's.
    fn preferred(&self, numbered: i64) -> i64 {
        match (self.horizon, self.number) {
            (0, Some(_)) => (PLAIN + numbered).clamp(FIRST, TOP),
            (0, None) => PLAIN,
            (later, _) => LATER[later - 1].1,
        }
    }
}

/// The priority of every rank, by sprint.
#[derive(Debug)]
pub struct Priorities(HashMap<String, Vec<(Rank, i64)>>);

impl Priorities {
    pub fn of(rows: &[Row]) -> Self {
        let mut sprints: BTreeMap<String, Vec<Rank>> = BTreeMap::new();
        for row in rows {
            sprints.entry(plain(row.get("sprint"))).or_default().push(Rank::of(row));
        }
        Self(sprints.into_iter().map(|(sprint, ranks)| (sprint, assign(ranks))).collect())
    }

    /// The priority of a row's task, and whether no other rank of its sprint has the same.
    pub fn priority(&self, row: &Row) -> (i64, bool) {
        let (rank, none) = (Rank::of(row), Vec::new());
        let sprint = self.0.get(&plain(row.get("sprint"))).unwrap_or(&none);
        let at = sprint.binary_search_by(|(other, _)| other.cmp(&rank));
        let priority = at.map_or(PLAIN, |at| sprint[at].1);
        (priority, sprint.iter().filter(|(_, other)| *other == priority).count() <= 1)
    }
}

/// The preferred priorities if there is room for all of them. Otherwise 100, 99, … in order; the last ranks share 0.
fn assign(mut ranks: Vec<Rank>) -> Vec<(Rank, i64)> {
    ranks.sort_by(Rank::cmp);
    ranks.dedup_by(|a, b| a.cmp(b).is_eq());
    let numbered = ranks.iter().filter(|rank| rank.horizon == 0 && rank.number.is_some()).count() as i64;
    let mut above = TOP + 1;
    let preferred = ranks.iter().map(|rank| {
        above = rank.preferred(numbered).min(above - 1);
        (*rank, above)
    });
    let preferred: Vec<_> = preferred.collect();
    match preferred.last() {
        Some((_, last)) if *last < 0 => {
            ranks.into_iter().zip(0..).map(|(rank, at)| (rank, (TOP - at).max(0))).collect()
        }
        _ => preferred,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(priority: Value, horizon: &str) -> Row {
        let row = json!({ "sprint": "a", "priority": priority, "horizon": horizon });
        row.as_object().cloned().unwrap_or_default()
    }

    /// The priorities of so many numbers, then of a task without a number and one for each later horizon.
    fn of(numbers: i64) -> Vec<(i64, bool)> {
        let mut rows: Vec<Row> = (0..numbers).map(|n| row(json!(n as f64 / 2.0), "active")).collect();
        rows.extend(["active", "next", "later", "icebox"].map(|horizon| row(Value::Null, horizon)));
        let priorities = Priorities::of(&rows);
        rows.iter().map(|row| priorities.priority(row)).collect()
    }

    #[test]
    fn only_the_order_counts_and_it_is_kept_while_there_is_room() {
        for (numbers, first, rest) in [
            (0, None, [50, 40, 30, 20]),
            (3, Some(90), [50, 40, 30, 20]),
            (40, Some(90), [50, 40, 30, 20]),
            (41, Some(91), [50, 40, 30, 20]),
            (50, Some(100), [50, 40, 30, 20]),
            (51, Some(100), [49, 40, 30, 20]),
            (97, Some(100), [3, 2, 1, 0]),
        ] {
            let found = of(numbers);
            let (ranked, others) = found.split_at(numbers as usize);
            assert_eq!(ranked.first().map(|(priority, _)| *priority), first, "{numbers}");
            assert!(found.windows(2).all(|pair| pair[0].0 > pair[1].0), "{numbers}: {found:?}");
            assert!(found.iter().all(|(_, kept)| *kept), "{numbers}");
            assert_eq!(others.iter().map(|(priority, _)| *priority).collect::<Vec<_>>(), rest, "{numbers}");
        }
    }

    #[test]
    fn ranks_without_room_share_the_last_priority_and_say_so() {
        let found = of(100);
        assert!(
            found[..100].windows(2).all(|pair| pair[0].0 > pair[1].0) && found[99] == (1, true),
            "{found:?}"
        );
        assert_eq!(found[100..], [(0, false); 4]);
    }

    #[test]
    fn tasks_for_later_have_an_order_too() {
        let rows = [
            row(json!(2), "later"),
            row(json!(9), "active"),
            row(json!(1), "later"),
            row(json!(2.0), "later"),
        ];
        let priorities = Priorities::of(&rows);
        assert_eq!(
            rows.map(|row| priorities.priority(&row)),
            [(29, true), (90, true), (30, true), (29, true)]
        );
    }
}
