//! Asking again: which requests may be, how they are made so, and for how long it is tried.

use fencepost::op::Entry;
use serde_json::Value;
use std::time::Duration;
// Real time: a server is awaited. Leases are decided by the fleet's clock.
use tokio::time::Instant;

/// What asking twice does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twice {
    /// Nothing is changed by asking.
    Reads,
    /// The request has an id, and the same id gets the first answer.
    Request,
    /// It acts under a claim: its fence tells a repeat from something new, and the row remembers how the claim ended.
    Claim,
    /// It says what shall be, or what it acts on takes it once, and gives the first answer again.
    Same,
    /// It would be done twice.
    Acts,
}

impl Twice {
    /// Said by what the request consists of, so that a new op needs no line here.
    pub fn of(entry: &Entry) -> Self {
        let schema = (entry.request)().to_value();
        let has = |schema: &Value, name: &str| schema["properties"].get(name).is_some();
        // Those of a batch are under a claim each.
        let parts = schema["$defs"].as_object().into_iter().flat_map(|defs| defs.values());
        match () {
            () if entry.reads => Twice::Reads,
            () if has(&schema, "request") => Twice::Request,
            () if parts.chain([&schema]).any(|part| has(part, "token") || has(part, "tokens")) => {
                Twice::Claim
            }
            () if entry.on_retry == fencepost::op::OnRetry::Idempotent => Twice::Same,
            () => Twice::Acts,
        }
    }

    pub fn is_safe(self) -> bool {
        self != Twice::Acts
    }

    pub fn is_known_by_id(self) -> bool {
        self == Twice::Request
    }

    pub fn changes_something(self) -> bool {
        self != Twice::Reads
    }
}

/// Between two tries: doubled each time, and never the same for all who lost the same server.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);
/// How long it is tried, from the first failure on. A server that never answered is likely not there; one that did is
/// likely being restarted, and is tried for as long as the request would wait in any case.
const UNKNOWN: Duration = Duration::from_secs(2);
const KNOWN: Duration = Duration::from_secs(15);

/// The pauses between tries.
#[derive(Debug, Clone)]
pub struct Pauses {
    first: Duration,
    next: Duration,
    longest: Duration,
}

impl Pauses {
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, next: first, longest }
    }

    pub fn next(&mut self) -> Duration {
        let pause = self.next.mul_f64(0.5 + fastrand::f64());
        self.next = (self.next * 2).min(self.longest);
        pause
    }

    /// It went well: whatever fails after is a first failure.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// The tries of one call.
#[derive(Debug)]
pub struct Tries {
    failed: Option<Instant>,
    pauses: Pauses,
    waits_until: Option<Instant>,
}

impl Tries {
    pub fn new(waits_until: Option<Instant>) -> Self {
        Self { failed: None, pauses: Pauses::new(FIRST, LONGEST), waits_until }
    }

    /// How long to wait before the next try; `None` if it was tried for long enough. `known`: has this server
    /// answered before?
    pub fn next(&mut self, now: Instant, known: bool) -> Option<Duration> {
        let failed = *self.failed.get_or_insert(now);
        let until = match known {
            true => self.waits_until.into_iter().fold(failed + KNOWN, Instant::max),
            false => failed + UNKNOWN,
        };
        let pause = self.pauses.next();
        (now + pause < until).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencepost::op;

    /// A new op that is not in here is asked again only if its request never left.
    #[test]
    fn what_can_be_asked_twice() {
        let all = |twice| {
            let names = op::registry().into_iter().filter(|entry| Twice::of(entry) == twice);
            names.map(|entry| entry.name).collect::<Vec<_>>()
        };
        for name in [
            "task/add",
            "task/claim",
            "task/claim_many",
            "task/plan",
            "task/import",
            "lock/claim",
            "mail/push",
            "mail/push_many",
            "mail/claim",
            "mail/take",
        ] {
            assert!(all(Twice::Request).contains(&name), "{name}");
        }
        let claim = [
            "task/done",
            "task/done_many",
            "task/fail",
            "claim/release",
            "claim/renew",
            "mail/done",
            "mail/release",
        ];
        for name in claim {
            assert!(all(Twice::Claim).contains(&name), "{name}");
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
            assert!(all(Twice::Same).contains(&name), "{name}");
        }
        for name in ["inbox/send", "channel/post", "channel/read"] {
            assert!(all(Twice::Request).contains(&name), "{name}");
        }
        // To end a run, or to take a claim away, could hit another that came meanwhile.
        for name in ["run/end", "claim/unclaim"] {
            assert!(all(Twice::Acts).contains(&name), "{name}");
        }
        for entry in op::registry() {
            assert_eq!(Twice::of(&entry) == Twice::Reads, entry.reads, "{}", entry.name);
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
            let (mut tries, mut now, mut count) = (Tries::new(waits_until), start, 0);
            while let Some(pause) = tries.next(now, known) {
                assert!(pause <= LONGEST.mul_f64(1.5), "{pause:?}");
                now += pause;
                count += 1;
            }
            assert!(now <= start + patience, "{:?} of {patience:?}", now - start);
            assert!(now + LONGEST.mul_f64(1.5) >= start + patience, "{:?} of {patience:?}", now - start);
            assert!(count >= 3, "{count} tries");
        }
    }
}
