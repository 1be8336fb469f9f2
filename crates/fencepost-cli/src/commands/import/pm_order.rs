//! The order of a sprint's tasks, as priorities.
//!
//! In a sprint the lower number comes first, and midpoints are used to put something between: only the order counts.
//! What is for later comes after all that is for now, and what has no number after what has one. Here priorities are
//! 0 to 100 and the higher comes first, so there is room for 101 places.

use super::{file::Row, words::plain};
use serde_json::Value;
use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
};

/// 90, 89, … for what has a number, from 100 if that many would reach 50. Whatever has none is at 50, as it is anywhere,
/// and what is for later below.
const FIRST: i64 = 90;
const TOP: i64 = 100;
const PLAIN: i64 = 50;
const LATER: [(&str, i64); 3] = [("next", 40), ("later", 30), ("icebox", 20)];

/// Where a task stands in its sprint: what it is for (0 is now), and its number.
#[derive(Debug, Clone, Copy)]
struct Place {
    horizon: usize,
    number: Option<f64>,
}

impl Place {
    fn of(row: &Row) -> Self {
        let horizon = plain(row.get("horizon")).to_lowercase();
        let later = LATER.iter().position(|(name, _)| *name == horizon);
        let number = row.get("priority").and_then(Value::as_f64);
        Self { horizon: later.map_or(0, |later| later + 1), number }
    }

    fn cmp(&self, other: &Self) -> Ordering {
        let number = |place: &Self| place.number.unwrap_or(f64::INFINITY);
        self.horizon.cmp(&other.horizon).then(number(self).total_cmp(&number(other)))
    }

    /// Where it would be if nothing came before it; if something does, it is below that.
    fn wish(&self, numbered: i64) -> i64 {
        match (self.horizon, self.number) {
            (0, Some(_)) => (PLAIN + numbered).clamp(FIRST, TOP),
            (0, None) => PLAIN,
            (later, _) => LATER[later - 1].1,
        }
    }
}

/// The priorities of the places of every sprint.
#[derive(Debug)]
pub struct Order(HashMap<String, Vec<(Place, i64)>>);

impl Order {
    pub fn of(rows: &[Row]) -> Self {
        let mut sprints: BTreeMap<String, Vec<Place>> = BTreeMap::new();
        for row in rows {
            sprints.entry(plain(row.get("sprint"))).or_default().push(Place::of(row));
        }
        Self(sprints.into_iter().map(|(sprint, places)| (sprint, lay_out(places))).collect())
    }

    /// The priority of a row's task, and whether it still tells its place from every other of its sprint.
    pub fn priority(&self, row: &Row) -> (i64, bool) {
        let (place, none) = (Place::of(row), Vec::new());
        let sprint = self.0.get(&plain(row.get("sprint"))).unwrap_or(&none);
        let at = sprint.binary_search_by(|(other, _)| other.cmp(&place));
        let priority = at.map_or(PLAIN, |at| sprint[at].1);
        (priority, sprint.iter().filter(|(_, other)| *other == priority).count() <= 1)
    }
}

/// As wished where that leaves room for all, else one right below the other from the top. The last share the last.
fn lay_out(mut places: Vec<Place>) -> Vec<(Place, i64)> {
    places.sort_by(Place::cmp);
    places.dedup_by(|a, b| a.cmp(b).is_eq());
    let numbered = places.iter().filter(|place| place.horizon == 0 && place.number.is_some()).count() as i64;
    let mut above = TOP + 1;
    let wished = places.iter().map(|place| {
        above = place.wish(numbered).min(above - 1);
        (*place, above)
    });
    let wished: Vec<_> = wished.collect();
    match wished.last() {
        Some((_, last)) if *last < 0 => {
            places.into_iter().zip(0..).map(|(place, rank)| (place, (TOP - rank).max(0))).collect()
        }
        _ => wished,
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

    /// The priorities of so many numbers, and of something without a number and for later each.
    fn of(numbers: i64) -> Vec<(i64, bool)> {
        let mut rows: Vec<Row> = (0..numbers).map(|n| row(json!(n as f64 / 2.0), "active")).collect();
        rows.extend(["active", "next", "later", "icebox"].map(|horizon| row(Value::Null, horizon)));
        let order = Order::of(&rows);
        rows.iter().map(|row| order.priority(row)).collect()
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
    fn what_there_is_no_room_for_shares_the_last_place_and_says_so() {
        let found = of(100);
        assert!(
            found[..100].windows(2).all(|pair| pair[0].0 > pair[1].0) && found[99] == (1, true),
            "{found:?}"
        );
        assert_eq!(found[100..], [(0, false); 4]);
    }

    #[test]
    fn what_is_for_later_has_an_order_too() {
        let rows = [
            row(json!(2), "later"),
            row(json!(9), "active"),
            row(json!(1), "later"),
            row(json!(2.0), "later"),
        ];
        let order = Order::of(&rows);
        assert_eq!(rows.map(|row| order.priority(&row)), [(29, true), (90, true), (30, true), (29, true)]);
    }
}
