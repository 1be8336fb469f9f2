//! Permits that callers share: a limit on all of them together and a limit on each caller.

use fencepost::sync::lock;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

#[derive(Debug, Clone)]
pub struct Permits(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    total: usize,
    /// 0 is no limit.
    per_caller: usize,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    total: usize,
    by_caller: HashMap<String, usize>,
}

/// Which limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitReached {
    Total,
    Caller,
}

/// A caller's permit. Dropping it returns it.
#[derive(Debug)]
pub struct Permit {
    permits: Permits,
    caller: String,
}

impl Permits {
    pub fn new(total: usize, per_caller: usize) -> Self {
        Self(Arc::new(Shared { total, per_caller, used: Mutex::default() }))
    }

    pub fn acquire(&self, caller: String) -> Result<Permit, LimitReached> {
        let mut used = self.lock();
        if self.0.per_caller > 0 && used.by_caller.get(&caller).is_some_and(|own| *own >= self.0.per_caller) {
            return Err(LimitReached::Caller);
        }
        if used.total >= self.0.total {
            return Err(LimitReached::Total);
        }
        used.total += 1;
        *used.by_caller.entry(caller.clone()).or_default() += 1;
        Ok(Permit { permits: self.clone(), caller })
    }

    pub fn used(&self) -> usize {
        self.lock().total
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        lock(&self.0.used)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut used = self.permits.lock();
        used.total -= 1;
        if let Some(own) = used.by_caller.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                used.by_caller.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_caller_exceeds_its_limit_and_a_dropped_permit_is_free() {
        let permits = Permits::new(3, 2);
        let acquire = |caller: &str| permits.acquire(caller.to_owned());
        let (one, two) = (acquire("a").unwrap(), acquire("a").unwrap());
        assert_eq!(acquire("a").unwrap_err(), LimitReached::Caller);
        let three = acquire("b").unwrap();
        assert_eq!((acquire("c").unwrap_err(), permits.used()), (LimitReached::Total, 3));
        drop(one);
        let again = acquire("c").unwrap();
        drop((two, three, again));
        assert_eq!((permits.used(), permits.lock().by_caller.len()), (0, 0), "no trace of callers is left");
        let unlimited = Permits::new(3, 0);
        assert_eq!((0..4).map_while(|_| unlimited.acquire("a".into()).ok()).collect::<Vec<_>>().len(), 3);
    }
}
