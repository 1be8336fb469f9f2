use super::{
    Changed, Phase, Replay, Settings, message_token,
    record::{Record, held, load_locked, save},
    settings_of,
};
use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::Result,
    lease::{Under, hold::is_repeat},
    limits::{TEXT_MAX, TTL_MAX, check},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Fail the message held under a token: finally, or with a retry after a backoff.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fail {
    pub token: String,
    /// Reason of the failure; stored as `failure_reason`.
    pub reason: String,
    /// Retry it while attempts are left.
    #[serde(default)]
    pub retry: bool,
    /// The work was cut off, and its effects are unknown. The mailbox's `replay` setting applies, as if the holder had
    /// been lost.
    #[serde(default)]
    pub lost: bool,
    /// The holder was stopped on request and cut the work off. As `lost`, but with `replay` `retry` the message is
    /// pending again at once, and the attempt does not count.
    #[serde(default)]
    pub stopped: bool,
    /// Delay before the retry (default: the mailbox's backoff, which doubles with each attempt).
    #[serde(default)]
    pub delay_ms: Option<Millis>,
}

impl Fail {
    pub fn new(token: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { token: token.into(), reason: reason.into(), ..Self::default() }
    }
}

impl Op for Fail {
    const NAME: &'static str = "mail/fail";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::UnderClaim;
    const EXAMPLE: &'static str = r#"{"token":"message/812@1","reason":"the registry does not answer"}"#;
    refuses![LeaseExpired, AlreadyFinished];
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::holds(&self.token)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        let (token, id) = message_token(&self.token)?;
        check::line("reason", &self.reason, TEXT_MAX)?;
        if let Some(delay) = self.delay_ms {
            check::span("delay_ms", delay, Millis(0), TTL_MAX)?;
        }
        let found = load_locked(tx, &[id]).await?.remove(&id);
        if let Some(message) = &found
            && is_repeat(tx, message.last.as_ref(), &token, "fail", &self.content())?
        {
            return Ok(Changed { message: message.clone().view(tx.now) });
        }
        let found = held(found, &token, tx)?;
        let settings = settings_of(tx, std::slice::from_ref(&found)).await?.remove(&found.mailbox);
        let message = self.apply(&found, &settings.unwrap_or_default(), tx.now);
        let kind = match (&message.phase, &message.outcome) {
            (Phase::Failed(_), Some(_)) => "message.discarded",
            (Phase::Failed(_), None) => "message.failed",
            (Phase::SetAside, _) => "message.held",
            _ if self.stopped => "message.released",
            _ => "message.retrying",
        };
        let details = serde_json::json!({ "reason": self.reason, "attempt": message.attempts });
        let event = message.event(kind, &found).details(details);
        save(tx, &[(found, message.clone())], Under::Claim, vec![event]).await?;
        Ok(Changed { message: message.view(tx.now) })
    }
}

impl Fail {
    fn content(&self) -> [Option<&str>; 3] {
        let cut_off = if self.stopped { Some("stopped") } else { self.lost.then_some("lost") };
        [Some(&self.reason), self.retry.then_some("retry"), cut_off]
    }

    /// The rule. After its last attempt a message fails, even if a retry was requested.
    fn apply(&self, message: &Record, settings: &Settings, now: Time) -> Record {
        let mut message = Record {
            failure_reason: Some(self.reason.clone()),
            lapsed: 0,
            updated_at: now,
            ..message.clone()
        };
        let replay = if self.lost || self.stopped { settings.replay } else { Replay::Retry };
        let next = match replay {
            Replay::Hold => Phase::SetAside,
            Replay::Discard => {
                message.outcome = Some("discarded".into());
                Phase::Failed(now)
            }
            Replay::Retry if self.stopped => {
                message.attempts -= 1;
                Phase::Pending
            }
            Replay::Retry if (self.retry || self.lost) && message.attempts < message.max_attempts => {
                let delay = self.delay_ms.unwrap_or_else(|| settings.backoff(message.attempts));
                message.delayed_until = (delay.0 > 0).then(|| now.plus(delay));
                Phase::Pending
            }
            Replay::Retry => Phase::Failed(now),
        };
        message.end_claim("fail", &self.content(), next);
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{lease::Hold, ops::mail::Status};

    #[test]
    fn a_failure_is_final_or_follows_the_callers_and_the_mailboxs_rules() {
        let now = Time(1000);
        let (retry, hold, discard) = (Replay::Retry, Replay::Hold, Replay::Discard);
        let fail = || Fail { token: "message/1@1".into(), reason: "no luck".into(), ..Fail::default() };
        let again = || Fail { retry: true, ..fail() };
        let lost = || Fail { lost: true, ..fail() };
        let stopped = || Fail { stopped: true, ..fail() };
        let delayed = || Fail { delay_ms: Some(Millis(70)), ..again() };
        // The mailbox's replay policy decides only if the holder was cut off: `lost` or `stopped`.
        // Attempts before; status, attempts and delay in milliseconds after.
        let cases = [
            (fail(), retry, 1, Status::Failed, 1, None),
            (fail(), hold, 1, Status::Failed, 1, None),
            (again(), retry, 1, Status::Pending, 1, Some(10_000)),
            (again(), hold, 2, Status::Pending, 2, Some(20_000)),
            (again(), retry, 3, Status::Failed, 3, None),
            (delayed(), retry, 1, Status::Pending, 1, Some(70)),
            (lost(), retry, 1, Status::Pending, 1, Some(10_000)),
            (lost(), retry, 3, Status::Failed, 3, None),
            (lost(), hold, 3, Status::Held, 3, None),
            (lost(), discard, 1, Status::Failed, 1, None),
            (stopped(), retry, 3, Status::Pending, 2, None),
            (stopped(), hold, 1, Status::Held, 1, None),
            (stopped(), discard, 1, Status::Failed, 1, None),
        ];
        for (fail, replay, attempts, status, attempts_after, delay) in cases {
            let held = Phase::Processing(Hold::sample("r", 1, Time(2000)));
            let before = Record { attempts, lapsed: 1, ..Record::sample(held) };
            let after = fail.apply(&before, &Settings { replay, ..Settings::default() }, now);
            let context = format!("{fail:?}, {replay:?}, {attempts} attempts");
            assert_eq!(
                (after.status(), after.attempts, after.lapsed),
                (status, attempts_after, 0),
                "{context}"
            );
            assert_eq!(after.delayed_until, delay.map(|delay| now.plus(Millis(delay))), "{context}");
            let discarded = replay == discard && (fail.lost || fail.stopped);
            assert_eq!(after.outcome.as_deref(), discarded.then_some("discarded"), "{context}");
            assert_eq!(after.failure_reason.as_deref(), Some("no luck"), "{context}");
            assert_eq!(after.last.expect("how the claim ended").verb, "fail", "{context}");
        }
    }
}
