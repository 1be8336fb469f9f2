use super::{
    Changed, Replay, Settings, Status, message_token,
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
    const EXAMPLE: &'static str = r#"{"token":"message/812@1","reason":"as it was agreed"}"#;
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
        let kind = match (message.status, &message.outcome) {
            (Status::Failed, Some(_)) => "message.discarded",
            (Status::Failed, None) => "message.failed",
            (Status::Held, _) => "message.held",
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
        message.end_claim("fail", &self.content());
        let replay = if self.lost || self.stopped { settings.replay } else { Replay::Retry };
        if replay == Replay::Retry && self.stopped {
            message.status = Status::Pending;
            message.attempts -= 1;
        } else if replay == Replay::Hold {
            message.status = Status::Held;
        } else if replay == Replay::Discard {
            message.finish(Status::Failed, now);
            message.outcome = Some("discarded".into());
        } else if (self.retry || self.lost) && message.attempts < message.max_attempts {
            let delay = self.delay_ms.unwrap_or_else(|| settings.backoff(message.attempts));
            message.status = Status::Pending;
            message.delayed_until = (delay.0 > 0).then(|| now.plus(delay));
        } else {
            message.finish(Status::Failed, now);
        }
        message
    }
}
