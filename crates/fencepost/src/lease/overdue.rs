//! Reads show the state that expiry would write now, and write nothing.
//!
//! While nothing is due, a read costs nothing extra. Otherwise it first loads the items whose claims are lost,
//! through the indexes that expiry uses (as many rows as lost claims, whatever the size of the tables), and applies
//! the rules of expiry to them in memory. The read's own statement leaves those items out, and the matching ones
//! are merged into its rows. Delays need no such set: statements and rules compare them with the time.

use crate::db::{Value, key_set};
use std::collections::BTreeMap;

/// A row that expiry may change, with its key.
pub(crate) trait Item: Clone {
    fn key(&self) -> i64;
}

/// The items that expiry would change now, as it would write them.
#[derive(Debug)]
pub(crate) struct Overdue<T>(BTreeMap<i64, T>);

impl<T> Default for Overdue<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Item> FromIterator<T> for Overdue<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self(items.into_iter().map(|item| (item.key(), item)).collect())
    }
}

impl<T: Item> Overdue<T> {
    /// The keys, for a statement that leaves these items out: `key not in (select cast(value ->> 'k' as bigint)
    /// from json_each(?2))`. Not `?1`: PostgreSQL would get a list, and scan it for each row.
    pub fn keys(&self) -> Value {
        key_set(self.0.keys().copied())
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.values()
    }

    /// The item as it is now.
    pub fn of(&self, item: T) -> T {
        self.0.get(&item.key()).cloned().unwrap_or(item)
    }

    /// Merges the rows of a statement that leaves out overdue items with the overdue items that fit, in the order
    /// of their keys. Returns a page of at most `limit`, and whether there is another.
    pub fn page(&self, found: Vec<T>, fits: impl Fn(&T) -> bool, limit: i64) -> (Vec<T>, bool) {
        let mut page = self.merge(found, fits);
        page.sort_by_key(Item::key);
        let more = page.len() as i64 > limit;
        page.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        (page, more)
    }

    /// Like [`Self::page`], unordered and unlimited.
    pub fn merge(&self, mut found: Vec<T>, fits: impl Fn(&T) -> bool) -> Vec<T> {
        found.extend(self.0.values().filter(|item| fits(item)).cloned());
        found
    }
}
