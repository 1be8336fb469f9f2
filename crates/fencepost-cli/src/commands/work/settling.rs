//! The rule: what the end of a child means for the work that it was given.

use super::{profile::NoVerdict, reading::Reading};
pub use crate::output::text::fit;
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
    pub fn done() -> Self {
        Self { outcome: Outcome::Done, reason: None, delay: None, for_good: false }
    }
    pub fn failed(reason: impl Into<String>) -> Self {
        Self { outcome: Outcome::Failed, reason: Some(reason.into()), delay: None, for_good: false }
    }
    pub fn released(reason: impl Into<String>) -> Self {
        Self { outcome: Outcome::Released, reason: Some(reason.into()), delay: None, for_good: false }
    }
}

/// The exit that is stored with the run.
pub fn exit(end: &End) -> String {
    match end {
        End::Exited(code) => code.to_string(),
        End::Stopped => "stopped".into(),
        End::Interrupted(why) => why.split(':').next().unwrap_or_default().into(),
        End::Lost(_) => "lost".into(),
    }
}

/// The child's own verdict, if it ended all its claims itself with these verbs.
pub fn verdict(verbs: &[String]) -> Option<Outcome> {
    let is = |verb: &str| verbs.iter().any(|one| one == verb);
    match verbs {
        [] => None,
        _ if is("fail") => Some(Outcome::Failed),
        _ if is("release") => Some(Outcome::Released),
        // An offer that was accepted or rejected is decided.
        _ => Some(Outcome::Done),
    }
}

/// The fate of the work. `own` is the child's own verdict.
pub fn decide(end: &End, own: Option<Outcome>, reading: &Reading, no_verdict: NoVerdict) -> Decision {
    match (end, own) {
        // It counts, whatever happened to the child afterwards.
        (_, Some(outcome)) => Decision { outcome, ..Decision::done() },
        (End::Stopped, None) => Decision::released(STOPPED),
        (End::Lost(reason), None) => Decision::released(reason),
        (End::Exited(1..), None) if reading.stopped.is_some() => {
            Decision::released(reading.stopped.as_ref().map(|stopped| stopped.reason()).unwrap_or_default())
        }
        (End::Interrupted(reason), None) => Decision::failed(reason),
        (End::Exited(0), None) => match no_verdict {
            NoVerdict::Done => Decision::done(),
            NoVerdict::Fail => {
                Decision::failed("no_verdict: its command ended without saying whether the work is done")
            }
            NoVerdict::Release => Decision { delay: Some(AGAIN_AFTER), ..Decision::released("no_verdict") },
        },
        (End::Exited(TEMPORARY), None) => Decision {
            delay: Some(AGAIN_AFTER),
            ..Decision::released(format!("its command exited with {TEMPORARY}, a temporary failure"))
        },
        (End::Exited(code @ 129..), None) => {
            Decision::failed(format!("its command exited with {code}, as by signal {}", code - 128))
        }
        (End::Exited(code), None) => Decision::failed(format!("its command exited with {code}")),
    }
}

/// The longest reason that is stored. A client may put a whole page into its message.
const REASON_MAX: usize = 2000;

/// A reason that a fleet accepts.
pub fn fit_reason(reason: &str) -> String {
    fit(reason, REASON_MAX)
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
        let own = |verb: &str| verdict(&[verb.to_owned()]);
        let cases = [
            (End::Exited(0), None, &plain, Done, "done"),
            (
                End::Exited(0),
                None,
                &plain,
                Fail,
                "failed no_verdict: its command ended without saying whether the work is done",
            ),
            (End::Exited(0), None, &plain, Release, "released no_verdict 60000"),
            (End::Exited(0), own("done"), &plain, Fail, "done"),
            (End::Exited(1), own("done"), &plain, Fail, "done"),
            (End::Exited(0), own("fail"), &plain, Done, "failed"),
            (End::Exited(0), own("release"), &plain, Done, "released"),
            (End::Exited(0), own("reject"), &plain, Fail, "done"),
            (End::Lost("x".into()), own("done"), &plain, Fail, "done"),
            (End::Exited(1), None, &plain, Done, "failed its command exited with 1"),
            (End::Exited(137), None, &plain, Done, "failed its command exited with 137, as by signal 9"),
            (
                End::Exited(75),
                None,
                &plain,
                Done,
                "released its command exited with 75, a temporary failure 60000",
            ),
            (End::Exited(1), None, &limit, Fail, "released usage limit: resets 3pm"),
            // It went on, and ended well.
            (End::Exited(0), None, &limit, Done, "done"),
            (End::Stopped, None, &plain, Fail, "released its worker was told to end"),
            (End::Interrupted("it stalled".into()), None, &limit, Fail, "failed it stalled"),
            (End::Lost("claim `x` is over".into()), None, &plain, Fail, "released claim `x` is over"),
        ];
        for (end, own, reading, no_verdict, says) in cases {
            let decision = decide(&end, own, reading, no_verdict);
            let parts = [
                Some(decision.outcome.as_str().to_owned()),
                decision.reason,
                decision.delay.map(|delay| delay.0.to_string()),
            ];
            let said: Vec<String> = parts.into_iter().flatten().collect();
            assert_eq!(said.join(" "), says, "{end:?} {own:?}");
        }
    }
}
