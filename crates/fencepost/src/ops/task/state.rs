//! The state shown to people: a task that is blocked, parked or delayed is not just "unassigned".

use super::{Record, Status, Task};
use crate::error::{Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The status of a task, or the reason why nobody can claim it. Every task is in exactly one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Any agent may claim it.
    Unassigned,
    /// Offered to one agent, which has not accepted or rejected it yet.
    Offered,
    /// Held by a run of the agent it is offered to, which decides.
    Reviewing,
    /// Assigned to an agent that has not claimed it yet.
    Pending,
    /// Waiting for other tasks to be completed.
    Blocked,
    /// Set aside by `park`.
    Parked,
    /// It failed, and is retried later.
    Delayed,
    /// Held by a run that works on it.
    InProgress,
    Completed,
    Failed,
    Cancelled,
}

impl State {
    /// In the order of a task's life.
    pub const ALL: [State; 11] = [
        State::Unassigned,
        State::Offered,
        State::Reviewing,
        State::Pending,
        State::Blocked,
        State::Parked,
        State::Delayed,
        State::InProgress,
        State::Completed,
        State::Failed,
        State::Cancelled,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            State::Unassigned => Status::Unassigned.as_str(),
            State::Offered => Status::Offered.as_str(),
            State::Reviewing => Status::Reviewing.as_str(),
            State::Pending => Status::Pending.as_str(),
            State::Blocked => "blocked",
            State::Parked => "parked",
            State::Delayed => "delayed",
            State::InProgress => Status::InProgress.as_str(),
            State::Completed => Status::Completed.as_str(),
            State::Failed => Status::Failed.as_str(),
            State::Cancelled => Status::Cancelled.as_str(),
        }
    }

    pub(crate) fn read(text: &str) -> Result<Self> {
        let state = State::ALL.into_iter().find(|state| state.as_str() == text);
        state.ok_or_else(|| Error::internal("a task has a state that this fence does not know"))
    }

    /// The rule. [`state_now!`] says the same in SQL.
    fn of(status: Status, waiting_on: i64, is_parked: bool, is_delayed: bool) -> Self {
        match status {
            Status::Completed => State::Completed,
            Status::Failed => State::Failed,
            Status::Cancelled => State::Cancelled,
            Status::Reviewing => State::Reviewing,
            Status::InProgress => State::InProgress,
            _ if waiting_on > 0 => State::Blocked,
            _ if is_parked => State::Parked,
            _ if is_delayed => State::Delayed,
            Status::Unassigned => State::Unassigned,
            Status::Offered => State::Offered,
            Status::Pending => State::Pending,
        }
    }
}

impl Task {
    pub fn state(&self) -> State {
        State::of(self.status, self.waiting_on, self.parked.is_some(), self.delayed_until.is_some())
    }
}

impl Record {
    /// The state of a task as it is now: a delay that is over does not count.
    pub fn state(&self) -> State {
        State::of(self.status(), self.waiting_on, self.parked.is_some(), self.delayed_until.is_some())
    }
}

/// [`State::of`] in SQL, for a row that is not overdue.
macro_rules! state_now {
    ($now:literal) => {
        concat!(
            "case when task.status not in ('unassigned', 'offered', 'pending') then task.status
                  when task.waiting_on > 0 then 'blocked'
                  when task.parked is not null then 'parked'
                  when task.delayed_until > ",
            $now,
            " then 'delayed' else task.status end"
        )
    };
}
pub(crate) use state_now;
