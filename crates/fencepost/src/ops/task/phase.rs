//! The phase of a task, with the data that only this phase has.

use super::Status;
use crate::{
    clock::Time,
    lease::{Closed, Hold},
};

/// Free, held by a run, or finished. A task has a claim if and only if it is held, and a finish time if and only if it is
/// finished.
#[derive(Debug, Clone)]
pub(crate) enum Phase {
    Unassigned,
    Offered,
    Pending,
    Reviewing(Hold),
    InProgress(Hold),
    Completed(Time),
    Failed(Time),
    Cancelled(Time),
}

/// Why a run claims a task: to accept or reject it, or to do it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Review,
    Work,
}

impl Phase {
    /// The phase of a row; `home` is where the task waits while nobody has it. A row that contradicts itself (`admin/check`
    /// finds it) is read as free or finished.
    pub fn read(status: Status, hold: Option<Hold>, finished_at: Time, home: Phase) -> Self {
        match (status, hold) {
            (Status::Unassigned, _) => Phase::Unassigned,
            (Status::Offered, _) | (Status::Reviewing, None) => Phase::Offered,
            (Status::Pending, _) => Phase::Pending,
            (Status::InProgress, None) => home,
            (Status::Reviewing, Some(hold)) => Phase::Reviewing(hold),
            (Status::InProgress, Some(hold)) => Phase::InProgress(hold),
            (Status::Completed, _) => Phase::Completed(finished_at),
            (Status::Failed, _) => Phase::Failed(finished_at),
            (Status::Cancelled, _) => Phase::Cancelled(finished_at),
        }
    }

    pub fn claimed(purpose: Purpose, hold: Hold) -> Self {
        match purpose {
            Purpose::Review => Phase::Reviewing(hold),
            Purpose::Work => Phase::InProgress(hold),
        }
    }

    pub fn status(&self) -> Status {
        match self {
            Phase::Unassigned => Status::Unassigned,
            Phase::Offered => Status::Offered,
            Phase::Pending => Status::Pending,
            Phase::Reviewing(_) => Status::Reviewing,
            Phase::InProgress(_) => Status::InProgress,
            Phase::Completed(_) => Status::Completed,
            Phase::Failed(_) => Status::Failed,
            Phase::Cancelled(_) => Status::Cancelled,
        }
    }

    /// The claim, alive or lost.
    pub fn hold(&self) -> Option<&Hold> {
        match self {
            Phase::Reviewing(hold) | Phase::InProgress(hold) => Some(hold),
            _ => None,
        }
    }

    pub fn finished_at(&self) -> Option<Time> {
        match self {
            Phase::Completed(at) | Phase::Failed(at) | Phase::Cancelled(at) => Some(*at),
            _ => None,
        }
    }

    pub fn closed(&self) -> Option<Closed> {
        match self {
            Phase::Completed(_) | Phase::Failed(_) => Some(Closed::Finished),
            Phase::Cancelled(_) => Some(Closed::Cancelled),
            _ => None,
        }
    }

    /// Only the claim and its outcome change, so that [`save()`](super::save) writes fewer columns.
    pub fn leads_straight_to(&self, next: &Phase) -> bool {
        matches!(
            (self, next),
            (Phase::Unassigned | Phase::Pending | Phase::InProgress(_), Phase::InProgress(_))
                | (Phase::InProgress(_), Phase::Completed(_))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every status, with and without a claim.
    #[test]
    fn a_row_has_one_phase() {
        for status in Status::ALL {
            for hold in [None, Some(Hold::sample("r", 1, Time(10)))] {
                let needs_hold = matches!(status, Status::Reviewing | Status::InProgress);
                let is_held = needs_hold && hold.is_some();
                let phase = Phase::read(status, hold, Time(5), Phase::Pending);
                assert_eq!(phase.hold().is_some(), is_held, "{phase:?}");
                assert_eq!(phase.finished_at(), status.is_finished().then_some(Time(5)), "{phase:?}");
                match (status, needs_hold == is_held) {
                    (_, true) => assert_eq!(phase.status(), status),
                    (Status::Reviewing, false) => assert_eq!(phase.status(), Status::Offered),
                    (_, false) => assert_eq!(phase.status(), Status::Pending),
                }
            }
        }
    }
}
