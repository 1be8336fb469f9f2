//! A value read from the database and reused for a second. Callers without a key can therefore cause at most one read
//! a second.

use fencepost::Result;
use std::time::Duration;
use tokio::{sync::Mutex, time::Instant};

/// How long a value is reused.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Cache<T>(Mutex<Option<(Instant, T)>>);

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Cache<T> {
    /// The cached value, or a new one. Concurrent callers share one read.
    pub async fn get(&self, read: impl Future<Output = Result<T>>) -> Result<T> {
        // Real time: it decides how often the database is asked.
        let called = Instant::now();
        let mut cached = self.0.lock().await;
        if let Some((_, value)) =
            cached.as_ref().filter(|(since, _)| is_fresh(*since, called, Instant::now()))
        {
            return Ok(value.clone());
        }
        *cached = None;
        let (since, value) = (Instant::now(), read.await?);
        *cached = Some((since, value.clone()));
        Ok(value)
    }
}

/// May a caller get a value that was read at `since`? If reads take longer than a second, callers that waited for one share
/// it: otherwise each of them would begin the next one, and the last would wait for all of them.
fn is_fresh(since: Instant, called: Instant, now: Instant) -> bool {
    since >= called || now - since < FRESH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_fresh_for_a_second_and_for_those_who_waited_for_it() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        for (case, since, called, now, expected) in [
            ("half a second old", 0, 500, 500, true),
            ("a second old", 0, 1000, 1000, false),
            ("it came while the caller waited", 100, 0, 5000, true),
            ("the read was slow, and had begun before the call", 0, 100, 5000, false),
        ] {
            assert_eq!(is_fresh(at(since), at(called), at(now)), expected, "{case}");
        }
    }
}
