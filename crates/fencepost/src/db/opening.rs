//! The opening of a transaction: its reads about the fleet before its own work. The layers above have the rules.

use super::{Answer, Scope, Value};
use crate::{
    clock::{Millis, Time},
    error::Result,
};

/// The facts that a transaction has read before its own work begins.
#[derive(Debug, Default)]
pub(crate) struct Opening {
    pub scope: Scope,
    /// The caller is still waiting and discards a not-yet reply: skip work that only improves its text.
    pub probe_only: bool,
    /// The next deadline. On PostgreSQL a call that does not need it does not read it ([`Self::due_unknown`]).
    pub due: Due,
    pub due_unknown: bool,
    /// The run that the call acts for, found by its name or by the token: alive, expired or ended.
    pub run: Option<RunRow>,
    /// Events of an earlier call with the same request id.
    pub repeat: Vec<Repeat>,
    /// The request id, for the events of this call.
    pub request: Option<String>,
    /// The op, the request's digest and the key's name, in the form that events store.
    pub fingerprint: Option<String>,
    /// Answers to the op's own opening reads.
    pub read: Vec<Answer>,
    /// The number of rows that the batch of expiry before this call changed.
    pub expired: u64,
    /// PostgreSQL: the number of times that the fleet was restored. Positions in the log contain it.
    pub epoch: i64,
    /// How far the fleet's time is ahead of the clock that it follows: this machine's, or the database's.
    pub ahead: Millis,
}

/// The next deadline. It passes without a write, so no event announces it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Due {
    /// Every new fence is above this number.
    pub floor: i64,
    /// The earliest end of a lease, of a claim with an end of its own, or of a delay.
    pub at: Option<Time>,
    /// An ended run may still hold something.
    pub unreleased: bool,
}

impl Due {
    pub fn is_due(&self, now: Time) -> bool {
        self.unreleased || self.at.is_some_and(|at| at <= now)
    }

    /// Reads the statement's one row: `floor`, `unreleased`, and then one deadline for each noun.
    pub fn read(answer: &Answer) -> Result<Self> {
        let row = &answer.rows[0];
        Ok(Self {
            floor: row.get("floor")?,
            unreleased: row.get::<Option<i64>>("unreleased")?.is_some(),
            at: row.values().iter().skip(2).filter_map(Value::as_int).min().map(Time),
        })
    }
}

/// A row of `run`.
#[derive(Debug, Clone)]
pub(crate) struct RunRow {
    pub key: i64,
    pub name: String,
    pub agent: Option<String>,
    pub ttl: Millis,
    pub opened_at: Time,
    pub expires_at: Time,
    pub ended_at: Option<Time>,
    pub reason: Option<String>,
}

/// One event of an earlier call with the same request id.
#[derive(Debug, Clone)]
pub(crate) struct Repeat {
    pub kind: String,
    pub resource: String,
    pub fence: Option<i64>,
    pub run: Option<String>,
    pub at: Time,
    pub fingerprint: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_due_at_its_deadline_or_while_an_ended_run_may_hold_something() {
        for (at, unreleased, now, due) in [
            (None, false, 10, false),
            (Some(11), false, 10, false),
            (Some(10), false, 10, true),
            (Some(9), false, 10, true),
            (None, true, 10, true),
            (Some(11), true, 10, true),
        ] {
            let next = Due { floor: 0, at: at.map(Time), unreleased };
            assert_eq!(next.is_due(Time(now)), due, "{next:?} at {now}");
        }
    }
}
