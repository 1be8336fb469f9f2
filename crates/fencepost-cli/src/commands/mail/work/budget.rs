//! How many messages may still be claimed.

use std::cell::Cell;

#[derive(Debug)]
pub struct Budget(Cell<Option<i64>>);

impl Budget {
    /// `None` is no limit.
    pub fn new(most: Option<i64>) -> Self {
        Self(Cell::new(most))
    }

    /// Reserves up to so many, before a claim; `None` if nothing is left.
    pub fn reserve(&self, wanted: i64) -> Option<i64> {
        let Some(left) = self.0.get() else { return Some(wanted) };
        let some = wanted.min(left);
        self.0.set(Some(left - some));
        (some > 0).then_some(some)
    }

    /// Returns the part of a reservation that was not claimed.
    pub fn give_back(&self, count: i64) {
        self.0.set(self.0.get().map(|left| left + count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_spent_twice() {
        let budget = Budget::new(Some(5));
        assert_eq!((budget.reserve(3), budget.reserve(3), budget.reserve(3)), (Some(3), Some(2), None));
        budget.give_back(1);
        assert_eq!((budget.reserve(3), budget.reserve(3)), (Some(1), None));
        assert_eq!(Budget::new(None).reserve(1000), Some(1000));
    }
}
