//! The phase of a message, with the data that only this phase has.

use super::Status;
use crate::{clock::Time, lease::Hold};

/// A message has a claim if and only if it is processing, and a finish time if and only if it is finished.
#[derive(Debug, Clone)]
pub(crate) enum Phase {
    Pending,
    /// Its claim was lost and it is not retried: an operator decides. Stored as status `held`.
    SetAside,
    Processing(Hold),
    Processed(Time),
    Failed(Time),
}

impl Phase {
    /// The phase of a row. A row that contradicts itself (`admin/check` finds it) is read as free or finished.
    pub fn read(status: Status, hold: Option<Hold>, finished_at: Time) -> Self {
        match (status, hold) {
            (Status::Pending, _) | (Status::Processing, None) => Phase::Pending,
            (Status::Held, _) => Phase::SetAside,
            (Status::Processing, Some(hold)) => Phase::Processing(hold),
            (Status::Processed, _) => Phase::Processed(finished_at),
            (Status::Failed, _) => Phase::Failed(finished_at),
        }
    }

    pub fn status(&self) -> Status {
        match self {
            Phase::Pending => Status::Pending,
            Phase::SetAside => Status::Held,
            Phase::Processing(_) => Status::Processing,
            Phase::Processed(_) => Status::Processed,
            Phase::Failed(_) => Status::Failed,
        }
    }

    /// The claim, alive or lost.
    pub fn hold(&self) -> Option<&Hold> {
        match self {
            Phase::Processing(hold) => Some(hold),
            _ => None,
        }
    }

    pub fn finished_at(&self) -> Option<Time> {
        match self {
            Phase::Processed(at) | Phase::Failed(at) => Some(*at),
            _ => None,
        }
    }

    pub fn is_finished(&self) -> bool {
        self.finished_at().is_some()
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
                let is_held = status == Status::Processing && hold.is_some();
                let phase = Phase::read(status, hold, Time(5));
                assert_eq!(phase.hold().is_some(), is_held, "{phase:?}");
                assert_eq!(phase.finished_at(), status.is_finished().then_some(Time(5)), "{phase:?}");
                let is_lost = status == Status::Processing && !is_held;
                assert_eq!(phase.status(), if is_lost { Status::Pending } else { status });
            }
        }
    }
}
