//! Renewing a lease while something runs: when to renew next, how long one request may take, and when the lease is over
//! by our own clock.
//!
//! [`Renewal`] is the rule. It has no clock and sends nothing: its caller sends a renewal at [`Renewal::next_at`],
//! within [`Renewal::limit`], and applies the [`Answer`]. Between two renewals the caller waits as it likes, for other
//! events as well.
//!
//! ```
//! use fencepost::{Result, claim};
//! use fencepost_client::{Connection, renewal::{self, Answer, ConfirmedLease, Renewal, Verdict}};
//!
//! /// Renews a claim until it is over, and returns why.
//! async fn keep(fleet: &Connection, token: &str, lease: ConfirmedLease) -> fencepost::Error {
//!     let mut renewal = Renewal::new(lease.left);
//!     renewal.renewed(lease);
//!     loop {
//!         renewal::sleep_until(renewal.next_at()).await;
//!         let sent = renewal::now();
//!         let renewed = renewal::within(renewal.limit(sent), fleet.call(claim::Renew::new(token))).await;
//!         let answer = Answer::of(sent, renewed.map(|renewed| renewed.lease_ms));
//!         if let (Verdict::Over, Answer::Over(error) | Answer::Unknown(error)) =
//!             (renewal.apply(&answer, renewal::now()), answer)
//!         {
//!             return error;
//!         }
//!     }
//! }
//! ```

use crate::retry::BACKOFF;
use fencepost::{Backoff, Clock, Error, Millis, Result};
use std::time::Duration;

/// Milliseconds of [`Clock::ticks`]: nobody can set them, and they count while a machine sleeps.
pub type Ticks = i64;

/// Renewals are at least this far apart: near its maximum, a claim has ever less of its lease left.
const SOONEST: Millis = Millis(100);
/// The longest that one request may take, however long the lease is.
const LONGEST_CALL: Millis = Millis::seconds(15);

/// A lease as the fleet confirmed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfirmedLease {
    /// When the request was sent. The fleet may have renewed the lease at any moment from then on.
    pub sent: Ticks,
    /// How much of the lease was left at that moment.
    pub left: Millis,
}

impl ConfirmedLease {
    /// Before this moment the fleet gives the claim to nobody else.
    pub fn ends(self) -> Ticks {
        self.sent.saturating_add(self.left.0)
    }
}

/// The outcome of one renewal.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Renewed(ConfirmedLease),
    /// The fleet says that the claim is over.
    Over(Error),
    /// No answer, or an error that says nothing about the claim. It may have been renewed.
    Unknown(Error),
}

impl Answer {
    /// `sent` is when the renewal was sent, `answer` how much of the lease is left.
    pub fn of(sent: Ticks, answer: Result<Millis>) -> Self {
        match answer {
            Ok(left) => Self::Renewed(ConfirmedLease { sent, left }),
            Err(error) if error.ends_claim() => Self::Over(error),
            Err(error) => Self::Unknown(error),
        }
    }
}

/// Whether a claim is still held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As far as we know.
    Held,
    /// The fleet said so, or the lease has ended without a renewal.
    Over,
}

/// When to renew a lease. It renews after a third of the lease, which leaves time for retries. At random it is up to a
/// tenth sooner: holders that started together, or waited out the same outage, do not stay together.
#[derive(Debug, Clone)]
pub struct Renewal {
    ttl: Millis,
    /// The longest pause between two renewals.
    longest: Millis,
    /// As last confirmed.
    left: Millis,
    next_at: Ticks,
    ends_at: Ticks,
    backoff: Backoff,
}

impl Renewal {
    /// For leases of this length. There is no lease until [`Self::renewed`].
    pub fn new(ttl: Millis) -> Self {
        let (longest, never) = (Millis(i64::MAX), Ticks::MIN);
        Self { ttl, longest, left: ttl, next_at: never, ends_at: never, backoff: BACKOFF }
    }

    /// Renews at least this often, however long the lease is.
    #[must_use]
    pub fn at_least_every(self, span: Millis) -> Self {
        Self { longest: span, ..self }
    }

    /// When to renew next.
    pub fn next_at(&self) -> Ticks {
        self.next_at
    }

    /// When the lease is over, unless it is renewed.
    pub fn ends_at(&self) -> Ticks {
        self.ends_at
    }

    /// From a confirmed lease to the next renewal, at most.
    pub fn interval(&self) -> Millis {
        Millis(self.left.min(self.ttl).0 / 3).min(self.longest).max(SOONEST)
    }

    /// How long a request may take: a fifth of the lease, so that there is time for another one, and never past its end.
    pub fn limit(&self, now: Ticks) -> Duration {
        let fifth = Millis(self.left.min(self.ttl).0 / 5).min(LONGEST_CALL);
        fifth.min(Millis(self.ends_at.saturating_sub(now))).into()
    }

    /// How long a check of the claim between two renewals may take: a quarter of the interval, because the renewal that
    /// follows matters more.
    pub fn check_limit(&self) -> Duration {
        Duration::from(self.interval()) / 4
    }

    /// The fleet has confirmed a lease.
    pub fn renewed(&mut self, lease: ConfirmedLease) {
        self.left = lease.left;
        self.ends_at = self.ends_at.max(lease.ends());
        let pause = Duration::from(self.interval()).mul_f64(1.0 - fastrand::f64() / 10.0);
        self.next_at = lease.sent.saturating_add(Millis::from(pause).0);
        self.backoff.reset();
    }

    /// The outcome of a renewal is unknown. The next attempt is due soon, and at the end of the lease at the latest, so
    /// that the loss is noticed in time.
    pub fn unanswered(&mut self, now: Ticks) -> Verdict {
        if now >= self.ends_at {
            return Verdict::Over;
        }
        let pause = Millis::from(self.backoff.next());
        self.next_at = now.saturating_add(pause.0).min(self.ends_at);
        Verdict::Held
    }

    /// Applies the answer to a renewal.
    pub fn apply(&mut self, answer: &Answer, now: Ticks) -> Verdict {
        match answer {
            Answer::Renewed(lease) => {
                self.renewed(*lease);
                Verdict::Held
            }
            Answer::Over(_) => Verdict::Over,
            Answer::Unknown(_) => self.unanswered(now),
        }
    }

    /// Renews no earlier than this.
    pub fn postpone(&mut self, until: Ticks) {
        self.next_at = self.next_at.max(until);
    }
}

pub fn now() -> Ticks {
    Clock::System.ticks()
}

pub async fn sleep_until(at: Ticks) {
    Clock::System.until(at).await;
}

/// Gives up a call after its limit: a database that does not answer must not hide the loss of a lease.
pub async fn within<T>(limit: Duration, call: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Error::unavailable(format!("the fleet did not answer in {limit:?}"));
    tokio::time::timeout(limit, call).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencepost::Code;

    /// Lines such as `20s renewed 60s -> next 38s to 40s, ends 80s, limit 12s`: when which answer came, and what follows.
    /// `next` is the earliest and the latest moment.
    fn check(mut renewal: Renewal, story: &str) {
        for line in story.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (event, expected) = line.split_once(" -> ").expect("an arrow");
            let words: Vec<_> = event.split_whitespace().collect();
            let now = ms(words[0]);
            let answer = match words[1..] {
                ["renewed", left] => Answer::Renewed(ConfirmedLease { sent: now, left: Millis(ms(left)) }),
                ["renewed", left, "sent", sent] => {
                    Answer::Renewed(ConfirmedLease { sent: ms(sent), left: Millis(ms(left)) })
                }
                ["refused"] => Answer::Over(Error::new(Code::Cancelled, "cancelled")),
                ["unknown"] => Answer::Unknown(Error::unavailable("no answer")),
                _ => panic!("{line}"),
            };
            let verdict = renewal.apply(&answer, now);
            let Renewal { next_at, ends_at, .. } = renewal;
            for part in expected.split(", ") {
                let words: Vec<_> = part.split_whitespace().collect();
                let fits = match words[..] {
                    ["over"] => verdict == Verdict::Over,
                    ["next", at] => verdict == Verdict::Held && next_at == ms(at),
                    ["next", from, "to", to] => {
                        verdict == Verdict::Held && (ms(from)..=ms(to)).contains(&next_at)
                    }
                    ["ends", at] => ends_at == ms(at),
                    ["limit", limit] => renewal.limit(now) == Millis(ms(limit)).into(),
                    ["check", limit] => renewal.check_limit() == Millis(ms(limit)).into(),
                    _ => panic!("{line}"),
                };
                assert!(fits, "{line}: {verdict:?}, {renewal:?}, limit {:?}", renewal.limit(now));
            }
        }
    }

    /// `1500ms` or `60s`
    fn ms(text: &str) -> i64 {
        match text.strip_suffix("ms") {
            Some(number) => number.parse().expect("a number"),
            None => text.trim_end_matches('s').parse::<i64>().expect("a number") * 1000,
        }
    }

    #[test]
    fn a_lease_is_renewed_after_a_third_of_it() {
        check(
            Renewal::new(Millis::seconds(60)),
            "
            0s  renewed 60s          -> next 18s to 20s, ends 60s, limit 12s, check 5s
            20s renewed 60s          -> next 38s to 40s, ends 80s, limit 12s
            47s renewed 60s sent 40s -> next 58s to 60s, ends 100s, limit 12s
            60s refused              -> over
            ",
        );
    }

    #[test]
    fn an_unknown_outcome_is_retried_until_the_lease_ends() {
        check(
            Renewal::new(Millis::seconds(60)),
            "
            0s      renewed 60s  -> next 18s to 20s, ends 60s
            20s     unknown      -> next 20025ms to 20075ms, ends 60s, limit 12s
            32s     unknown      -> next 32050ms to 32150ms, limit 12s
            50s     unknown      -> next 50100ms to 50300ms, limit 10s
            59990ms unknown      -> next 60s, limit 10ms
            60s     unknown      -> over
            60s     renewed 60s  -> next 78s to 80s, ends 120s, limit 12s
            80s     unknown      -> next 80025ms to 80075ms
            ",
        );
    }

    /// A claim with a maximum: the fleet confirms ever less.
    #[test]
    fn a_lease_that_shrinks_is_renewed_sooner_but_not_all_the_time() {
        check(
            Renewal::new(Millis::seconds(60)),
            "
            0s      renewed 45s   -> next 13500ms to 15s, ends 45s, limit 9s, check 3750ms
            15s     renewed 30s   -> next 24s to 25s, ends 45s, limit 6s, check 2500ms
            44s     renewed 600ms -> next 44180ms to 44200ms, ends 45s, limit 120ms, check 50ms
            44900ms renewed 90ms  -> next 44990ms to 45s, ends 45s, limit 18ms, check 25ms
            ",
        );
    }

    #[test]
    fn an_answer_never_shortens_the_lease() {
        check(
            Renewal::new(Millis::seconds(60)),
            "
            0s  renewed 60s          -> ends 60s
            21s renewed 45s sent 1s  -> ends 60s, next 14500ms to 16s
            ",
        );
    }

    #[test]
    fn a_long_lease_can_be_renewed_more_often() {
        let renewal = Renewal::new(Millis::minutes(30)).at_least_every(Millis::seconds(30));
        check(renewal, "0s renewed 1800s -> next 27s to 30s, ends 1800s, limit 15s");
        check(
            Renewal::new(Millis::minutes(30)),
            "0s renewed 1800s -> next 540s to 600s, ends 1800s, limit 15s",
        );
    }

    #[test]
    fn an_error_ends_the_claim_or_says_nothing_about_it() {
        for (code, over) in [
            (Code::LeaseExpired, true),
            (Code::AlreadyFinished, true),
            (Code::Cancelled, true),
            (Code::NotFound, true),
            (Code::Unavailable, false),
            (Code::OutcomeUnknown, false),
            (Code::Internal, false),
            (Code::RateLimited, false),
            (Code::Unauthorized, false),
        ] {
            let answer = Answer::of(0, Err(Error::new(code, "no")));
            assert_eq!(matches!(answer, Answer::Over(_)), over, "{code}");
        }
    }
}
