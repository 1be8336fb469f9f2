//! The state shown to people. It tells delayed messages apart from other pending ones.

use super::{Message, Status, record::Record};
use crate::clock::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The status of a message, or `delayed`. Every message is in exactly one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Waiting to be claimed.
    Pending,
    /// Not claimable yet: it was pushed with a delay, or it failed and is retried after a backoff.
    Delayed,
    /// Held by a run that works on it.
    Processing,
    /// Completed; see `outcome`.
    Processed,
    /// No attempt is left, or it was given up; see `failure_reason`.
    Failed,
    /// Its holder was lost. It waits for a person to redrive or discard it.
    Held,
}

impl State {
    pub const ALL: [State; 6] =
        [State::Pending, State::Delayed, State::Processing, State::Processed, State::Failed, State::Held];

    pub fn as_str(self) -> &'static str {
        match self {
            State::Pending => Status::Pending.as_str(),
            State::Delayed => "delayed",
            State::Processing => Status::Processing.as_str(),
            State::Processed => Status::Processed.as_str(),
            State::Failed => Status::Failed.as_str(),
            State::Held => Status::Held.as_str(),
        }
    }

    fn of(status: Status, is_delayed: bool) -> Self {
        match status {
            Status::Pending if is_delayed => State::Delayed,
            Status::Pending => State::Pending,
            Status::Processing => State::Processing,
            Status::Processed => State::Processed,
            Status::Failed => State::Failed,
            Status::Held => State::Held,
        }
    }
}

impl Message {
    pub fn state(&self) -> State {
        State::of(self.status, self.delayed_until.is_some())
    }
}

impl Record {
    pub fn state(&self, now: Time) -> State {
        State::of(self.status(), self.delayed_until.is_some_and(|until| until > now))
    }
}
