//! The fleet of a session, as its hooks ask it. The client waits for a hook, so one deadline counts for all that it asks and waits for.

use crate::environment::{duration, variable};
use fencepost::{Error, Millis, Op, Result};
use fencepost_client::Connection;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The time for all answers together.
const ANSWERS: Millis = Millis::seconds(8);
/// The longest that a person may set. The shell code around a hook ends it after 20 s, and then lets most commands pass.
/// Tests run on slow machines, without that code.
const LONGEST: Millis = if cfg!(debug_assertions) { Millis::minutes(10) } else { Millis::seconds(15) };

/// When a hook, or a command that writes the record of a session, stops waiting.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    at: Instant,
    limit: Millis,
}

impl Deadline {
    pub fn from_now() -> Self {
        let named = variable("FENCE_HOOK_TIMEOUT").and_then(|text| duration(&text).ok());
        let limit = named.unwrap_or(ANSWERS).min(LONGEST);
        Self { at: Instant::now() + Duration::from(limit), limit }
    }

    /// For one that does not wait.
    pub fn at_once() -> Self {
        Self { at: Instant::now(), limit: Millis(0) }
    }

    pub fn is_over(self) -> bool {
        Instant::now() >= self.at
    }

    /// The answer, or an error at the deadline.
    pub async fn meet<T>(self, answer: impl Future<Output = Result<T>>) -> Result<T> {
        let late = || Error::unavailable(format!("the fleet did not answer within {}", self.limit));
        timeout_at(self.at, answer).await.unwrap_or_else(|_| Err(late()))
    }

    /// Opens the fleet. Others may wait for a lock that this hook holds, so nothing is tried twice.
    pub async fn open(self, opening: impl Future<Output = Result<Connection>>) -> Result<Fleet> {
        Ok(Fleet { connection: self.meet(opening).await?.without_retries(), deadline: self })
    }
}

/// A fleet that answers before the deadline, or with an error.
#[derive(Debug)]
pub struct Fleet {
    connection: Connection,
    deadline: Deadline,
}

impl Fleet {
    pub async fn call<O: Op>(&self, op: O) -> Result<O::Reply> {
        self.deadline.meet(self.connection.call(op)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second question gets the time that the first one left.
    #[tokio::test]
    async fn one_deadline_counts_for_all_questions() {
        let passed = Deadline { at: Instant::now(), limit: Millis::days(1) };
        let twice = async {
            for _ in 0..2 {
                let late = passed.meet(std::future::pending::<Result<()>>()).await.expect_err("too late");
                assert_eq!(late.message(), "the fleet did not answer within 1d");
            }
        };
        tokio::time::timeout(Duration::from_secs(300), twice).await.expect("it does not wait for a day");
        assert!(passed.meet(async { Ok(()) }).await.is_ok(), "an answer that is there counts");
    }
}
