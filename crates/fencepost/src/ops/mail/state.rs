//! The state that a person is shown: a message that is not due yet is not just "pending".

use super::{Message, Status, record::Record};
use crate::clock::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The status of a message, or that it is delayed. Every message is in exactly one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Waiting to be claimed.
    Pending,
    /// Not to be claimed yet: it was pushed with a delay, or it failed and is tried again later.
    Delayed,
    /// Held by a run that works on it.
    Processing,
    /// Completed: its outcome says how.
    Processed,
    /// Given up: its reason says why.
    Failed,
    /// Its holder was lost, and a person is to say what becomes of it.
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
