//! The pause before another attempt.

use std::time::Duration;

/// The pauses between the attempts of one caller: each is about twice as long as the one before, up to a limit. Jitter
/// keeps callers that failed at the same moment from returning at the same moment.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, next: first, longest }
    }

    /// The pause before the next attempt.
    #[expect(clippy::should_implement_trait, reason = "the pauses never end, so it is no iterator")]
    pub fn next(&mut self) -> Duration {
        let pause = jitter(self.next);
        self.next = (self.next * 2).min(self.longest);
        pause
    }

    /// An attempt succeeded: the next failure is a first failure.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// A random span between half of this one and one and a half of it.
pub(crate) fn jitter(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_start_over() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(500));
        for _ in 0..2 {
            for about in [100, 200, 400, 500, 500].map(Duration::from_millis) {
                let pause = backoff.next();
                assert!((about / 2..=about * 3 / 2).contains(&pause), "{pause:?} is not about {about:?}");
            }
            backoff.reset();
        }
    }

    #[test]
    fn pauses_differ() {
        let pauses: Vec<_> = (0..20).map(|_| jitter(Duration::from_secs(1))).collect();
        assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{pauses:?}");
    }
}
