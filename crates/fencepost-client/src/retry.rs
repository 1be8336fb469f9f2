//! Retrying: how long to pause between attempts, and when to give up.
//!
//! Each op says in its own file, by `ON_RETRY`, whether it may be repeated after a lost response. `OnRetry` in the engine's
//! `engine/op.rs` explains the reasons: it only reads, it has a request id (the client makes one if the caller gave none), it acts
//! under a claim, whose fence identifies a repeat, or a repeat has no further effect. Other ops have `Never`,
//! with the reason beside it. `remote/attempt.rs` applies all this: a request that never left is always repeated. A direct connection
//! to a database repeats nothing after a lost commit.

use fencepost::{Backoff, Code, Error};
use std::time::Duration;
// Real time: it is spent waiting for a server. The fleet's clock decides leases.
use tokio::time::Instant;

/// Whether every repeat of the request gets the same error: the caller must change something.
pub fn is_permanent(error: &Error) -> bool {
    matches!(
        error.code(),
        Code::Invalid | Code::NotFound | Code::Unauthorized | Code::Forbidden | Code::TooLarge
    )
}

/// A request id that nobody used before.
pub fn new_request_id() -> String {
    format!("{:032x}", fastrand::u128(..))
}

/// The pauses while a fleet does not answer.
pub const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), LONGEST);
const LONGEST: Duration = Duration::from_secs(1);
/// How long a call is retried from its first failure on. A server that never answered is likely not there. A server that
/// answered before is likely being restarted, and is waited for longer.
const UNKNOWN: Duration = Duration::from_secs(2);
const KNOWN: Duration = Duration::from_secs(15);

/// The attempts of one call.
#[derive(Debug)]
pub struct Attempts {
    first_failure: Option<Instant>,
    backoff: Backoff,
    waits_until: Option<Instant>,
}

impl Attempts {
    pub fn new(waits_until: Option<Instant>) -> Self {
        Self { first_failure: None, backoff: BACKOFF, waits_until }
    }

    /// After a failure: the pause before the next attempt, or `None` to give up. `known`: has this server answered
    /// before?
    pub fn next(&mut self, now: Instant, known: bool) -> Option<Duration> {
        let first_failure = *self.first_failure.get_or_insert(now);
        let deadline = match known {
            true => self.waits_until.into_iter().fold(first_failure + KNOWN, Instant::max),
            false => first_failure + UNKNOWN,
        };
        let pause = self.backoff.next();
        (now + pause < deadline).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencepost::op::{self, OnRetry};

    /// Fails if the `ON_RETRY` of one of these ops is changed by mistake.
    #[test]
    fn which_ops_may_be_repeated() {
        let all = |on_retry| {
            let names = op::registry().into_iter().filter(|entry| entry.on_retry == on_retry);
            names.map(|entry| entry.name).collect::<Vec<_>>()
        };
        for name in [
            "task/add",
            "task/claim",
            "task/claim_many",
            "task/plan",
            "task/import",
            "lock/claim",
            "once/begin",
            "mail/push",
            "mail/push_many",
            "mail/claim",
            "mail/take",
        ] {
            assert!(all(OnRetry::ByRequestId).contains(&name), "{name}");
        }
        let claim = [
            "task/done",
            "task/done_many",
            "task/fail",
            "once/finish",
            "once/resolve",
            "claim/release",
            "claim/renew",
            "mail/done",
            "mail/release",
        ];
        for name in claim {
            assert!(all(OnRetry::UnderClaim).contains(&name), "{name}");
        }
        for name in [
            "agent/poll",
            "run/settle",
            "inbox/read",
            "inbox/respond",
            "inbox/delegate",
            "agent/join",
            "agent/leave",
            "channel/create",
            "channel/join",
            "channel/leave",
        ] {
            assert!(all(OnRetry::Idempotent).contains(&name), "{name}");
        }
        for name in ["inbox/send", "channel/post", "channel/read"] {
            assert!(all(OnRetry::ByRequestId).contains(&name), "{name}");
        }
        // A second `run/end` or `claim/unclaim` could hit a run or a claim that began meanwhile.
        for name in ["run/end", "claim/unclaim"] {
            assert!(all(OnRetry::Never).contains(&name), "{name}");
        }
        for entry in op::registry() {
            assert_eq!(entry.on_retry == OnRetry::Reads, entry.reads, "{}", entry.name);
        }
    }

    #[test]
    fn pauses_grow_and_end() {
        let start = Instant::now();
        let waits = Some(start + 4 * KNOWN);
        for (known, waits_until, patience) in [
            (false, None, UNKNOWN),
            (false, waits, UNKNOWN),
            (true, None, KNOWN),
            (true, Some(start), KNOWN),
            (true, waits, 4 * KNOWN),
        ] {
            let (mut attempts, mut now, mut count) = (Attempts::new(waits_until), start, 0);
            while let Some(pause) = attempts.next(now, known) {
                assert!(pause <= LONGEST.mul_f64(1.5), "{pause:?}");
                now += pause;
                count += 1;
            }
            assert!(now <= start + patience, "{:?} of {patience:?}", now - start);
            assert!(now + LONGEST.mul_f64(1.5) >= start + patience, "{:?} of {patience:?}", now - start);
            assert!(count >= 3, "{count} attempts");
        }
    }
}
