//! The rule: what the end of a child means for the work that it was given.

use super::{profile::NoVerdict, reading::Reading};
use fencepost::{Millis, run::settle::Outcome};

/// sysexits: a temporary failure; the user is invited to try again.
const TEMPORARY: u8 = 75;
/// The delay after an exit that gives the work back. The attempt does not count, so without a delay it would be a loop.
const AGAIN_AFTER: Millis = Millis::seconds(60);

/// The stored reason of work whose child was ended because the worker stops.
pub const STOPPED: &str = "its worker was told to end";

/// How a child ended.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    Exited(u8),
    /// The worker ended it because it stops itself.
    Stopped,
    /// The worker ended it for this reason.
    Interrupted(String),
    /// A claim was lost.
    Lost(String),
}

/// The fate of the work that the child did not settle itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub outcome: Outcome,
    pub reason: Option<String>,
    pub delay: Option<Millis>,
    /// A failure that another attempt cannot change.
    pub for_good: bool,
}

impl Decision {
    fn done() -> Self {
        Self { outcome: Outcome::Done, reason: None, delay: None, for_good: false }
    }
    pub fn failed(reason: impl Into<String>) -> Self {
        Self { outcome: Outcome::Failed, reason: Some(reason.into()), delay: None, for_good: false }
    }
    pub fn released(reason: impl Into<String>) -> Self {
        Self { outcome: Outcome::Released, reason: Some(reason.into()), delay: None, for_good: false }
    }
}

/// `settled`: the child ended all its claims itself.
pub fn decide(end: &End, settled: bool, reading: &Reading, no_verdict: NoVerdict) -> Decision {
    match end {
        // Its own verdict counts, whatever happened to it afterwards.
        _ if settled => Decision::done(),
        End::Stopped => Decision::released(STOPPED),
        End::Lost(reason) => Decision::released(reason),
        End::Exited(1..) if reading.stopped.is_some() => {
            Decision::released(reading.stopped.as_ref().map(|stopped| stopped.reason()).unwrap_or_default())
        }
        End::Interrupted(reason) => Decision::failed(reason),
        End::Exited(0) => match no_verdict {
            NoVerdict::Done => Decision::done(),
            NoVerdict::Fail => {
                Decision::failed("no_verdict: its command ended without saying whether the work is done")
            }
            NoVerdict::Release => Decision { delay: Some(AGAIN_AFTER), ..Decision::released("no_verdict") },
        },
        End::Exited(TEMPORARY) => Decision {
            delay: Some(AGAIN_AFTER),
            ..Decision::released(format!("its command exited with {TEMPORARY}, a temporary failure"))
        },
        End::Exited(code @ 129..) => {
            Decision::failed(format!("its command exited with {code}, as by signal {}", code - 128))
        }
        End::Exited(code) => Decision::failed(format!("its command exited with {code}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::work::{profile::StopKind, reading::Stopped};

    #[test]
    fn every_end_has_a_meaning() {
        let limit = Reading {
            stopped: Some(Stopped {
                kind: StopKind::UsageLimit,
                text: "resets 3pm".into(),
                until: None,
                pause: None,
            }),
            ..Reading::default()
        };
        let plain = Reading::default();
        use NoVerdict::{Done, Fail, Release};
        let cases = [
            (End::Exited(0), false, &plain, Done, "done"),
            (
                End::Exited(0),
                false,
                &plain,
                Fail,
                "failed no_verdict: its command ended without saying whether the work is done",
            ),
            (End::Exited(0), false, &plain, Release, "released no_verdict 60000"),
            (End::Exited(0), true, &plain, Fail, "done"),
            (End::Exited(1), true, &plain, Fail, "done"),
            (End::Lost("x".into()), true, &plain, Fail, "done"),
            (End::Exited(1), false, &plain, Done, "failed its command exited with 1"),
            (End::Exited(137), false, &plain, Done, "failed its command exited with 137, as by signal 9"),
            (
                End::Exited(75),
                false,
                &plain,
                Done,
                "released its command exited with 75, a temporary failure 60000",
            ),
            (End::Exited(1), false, &limit, Fail, "released usage limit: resets 3pm"),
            // It went on, and ended well.
            (End::Exited(0), false, &limit, Done, "done"),
            (End::Stopped, false, &plain, Fail, "released its worker was told to end"),
            (End::Interrupted("it stalled".into()), false, &limit, Fail, "failed it stalled"),
            (End::Lost("claim `x` is over".into()), false, &plain, Fail, "released claim `x` is over"),
        ];
        for (end, settled, reading, no_verdict, says) in cases {
            let decision = decide(&end, settled, reading, no_verdict);
            let parts = [
                Some(decision.outcome.as_str().to_owned()),
                decision.reason,
                decision.delay.map(|delay| delay.0.to_string()),
            ];
            let said: Vec<String> = parts.into_iter().flatten().collect();
            assert_eq!(said.join(" "), says, "{end:?} {settled}");
        }
    }
}
