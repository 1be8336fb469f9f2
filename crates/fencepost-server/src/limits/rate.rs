//! Requests a second for each caller.

use fencepost::{Code, Error, Result, sync::lock};
use std::{collections::HashMap, sync::Mutex, time::Duration};
use tokio::time::Instant;

/// A limit on each caller's requests a second; a caller may send one second's worth at once. For each caller it stores
/// when its requests so far would be done if they were spread evenly.
#[derive(Debug)]
pub struct Rate {
    /// Time for one request; `None` is no limit.
    each: Option<Duration>,
    start: Instant,
    busy_until: Mutex<HashMap<String, Duration>>,
}

/// From this many callers on, those with no recent request are forgotten.
const CALLERS: usize = 10_000;

impl Rate {
    pub fn new(per_second: u32) -> Self {
        let each = (per_second > 0).then(|| Duration::from_secs(1) / per_second);
        // Real time: it limits callers and decides nothing in the fleet.
        Self { each, start: Instant::now(), busy_until: Mutex::default() }
    }

    /// Counts one request of this caller, or refuses it.
    pub fn take(&self, caller: impl FnOnce() -> String) -> Result<()> {
        let Some(each) = self.each else { return Ok(()) };
        self.take_at(&caller(), each, self.start.elapsed())
    }

    /// Would [`Self::take`] refuse this caller now? Counts nothing.
    pub fn check(&self, caller: impl FnOnce() -> String) -> Result<()> {
        let Some(each) = self.each else { return Ok(()) };
        let busy_until = lock(&self.busy_until);
        next(&busy_until, &caller(), each, self.start.elapsed()).map(drop)
    }

    fn take_at(&self, caller: &str, each: Duration, now: Duration) -> Result<()> {
        let mut busy_until = lock(&self.busy_until);
        if busy_until.len() >= CALLERS {
            busy_until.retain(|_, until| *until > now);
        }
        let until = next(&busy_until, caller, each, now)?;
        busy_until.insert(caller.to_owned(), until);
        Ok(())
    }
}

/// When this caller is done after one more request. Refused if that is more than a second ahead.
fn next(
    busy_until: &HashMap<String, Duration>,
    caller: &str,
    each: Duration,
    now: Duration,
) -> Result<Duration> {
    let until = busy_until.get(caller).copied().unwrap_or_default().max(now) + each;
    let ahead = until - now;
    if ahead > Duration::from_secs(1) {
        let retry = (ahead - Duration::from_secs(1)).as_millis().max(1);
        return Err(Error::new(Code::RateLimited, "too many requests a second")
            .with("retry_after_ms", u64::try_from(retry).unwrap_or(u64::MAX))
            .hint(
                "send more in one request (claim_many, done_many), or wait with wait_ms instead of polling",
            ));
    }
    Ok(until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_accepts_one_second_s_worth_at_once_and_then_one_by_one() {
        let rate = Rate::new(10);
        let each = rate.each.unwrap();
        let take = |caller, ms| rate.take_at(caller, each, Duration::from_millis(ms));
        assert!((0..10).all(|_| take("a", 0).is_ok()));
        let refused = take("a", 0).unwrap_err();
        assert_eq!((refused.code(), refused.field("retry_after_ms")), (Code::RateLimited, Some(&100.into())));
        assert!(take("b", 0).is_ok(), "each caller has its own rate");
        assert!(take("a", 99).is_err());
        assert!(take("a", 100).is_ok() && take("a", 100).is_err());
        assert!((0..10).all(|_| take("a", 5000).is_ok()) && take("a", 5000).is_err());
    }
}
