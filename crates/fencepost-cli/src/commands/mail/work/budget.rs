//! How many messages may still be taken.

use std::cell::Cell;

#[derive(Debug)]
pub struct Budget(Cell<Option<i64>>);

impl Budget {
    /// Any number, unless there is a limit.
    pub fn new(most: Option<i64>) -> Self {
        Self(Cell::new(most))
    }

    /// Up to so many, before they are asked for; `None` if nothing is left.
    pub fn reserve(&self, wish: i64) -> Option<i64> {
        let Some(left) = self.0.get() else { return Some(wish) };
        let some = wish.min(left);
        self.0.set(Some(left - some));
        (some > 0).then_some(some)
    }

    /// What was not there to take, after all.
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
