use super::{
    Changed, Record, Status, backoff,
    done::{held, task_token},
    load_locked, save,
};
use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::{Batch, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::Result,
    lease::{
        Under,
        hold::{check_written, is_repeat},
    },
    limits::{TEXT_MAX, TTL_MAX, check},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Fail the task held under a token: finally, or to be retried after a delay.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fail {
    pub token: String,
    /// The reason. The next holder is shown it.
    pub reason: String,
    /// Retry, while attempts are left.
    #[serde(default)]
    pub retry: bool,
    /// The delay before the retry (default: 10 s, doubled with each attempt).
    #[serde(default)]
    pub delay_ms: Option<Millis>,
}

impl Fail {
    pub fn new(token: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { token: token.into(), reason: reason.into(), ..Self::default() }
    }
}

impl Op for Fail {
    const NAME: &'static str = "task/fail";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::UnderClaim;
    const EXAMPLE: &'static str = r#"{"token":"task/auth-3@1","reason":"as it was agreed"}"#;
    refuses![NotReady, LeaseExpired, AlreadyFinished, Cancelled];
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::holds(&self.token)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        let (token, id) = task_token(&self.token)?;
        check::line("reason", &self.reason, TEXT_MAX)?;
        if let Some(delay) = self.delay_ms {
            check::span("delay_ms", delay, Millis(0), TTL_MAX)?;
        }
        let found = load_locked(tx, &id).await?;
        if let Some(task) = &found
            && is_repeat(tx, task.last.as_ref(), &token, "fail", &self.content())?
        {
            return Ok(Changed { task: task.clone().view(tx.now) });
        }
        let found = held(found, &token, tx)?;
        let task = self.apply(&found, tx.now);
        let kind = if task.status == Status::Failed { "task.failed" } else { "task.retrying" };
        let details = serde_json::json!({ "reason": self.reason, "attempt": task.attempts });
        let mut batch = Batch::new();
        let saved = save(&mut batch, &found.was(), &task, Under::Claim, tx.now);
        batch.add(super::release::ended(&task, &found.was(), kind, Some(details)).insert(tx));
        check_written(tx.send(batch).await?.affected(saved), &token)?;
        Ok(Changed { task: task.view(tx.now) })
    }
}

impl Fail {
    fn content(&self) -> [Option<&str>; 2] {
        [Some(&self.reason), self.retry.then_some("retry")]
    }

    /// The rule. After its last attempt a task fails, even if a retry was requested.
    fn apply(&self, task: &Record, now: Time) -> Record {
        let mut task = Record {
            failure_reason: Some(self.reason.clone()),
            lapsed: false,
            updated_at: now,
            ..task.clone()
        };
        task.end_claim("fail", &self.content());
        if self.retry && task.attempts < task.max_attempts {
            let delay = self.delay_ms.unwrap_or_else(|| backoff(task.attempts));
            task.status = task.home();
            task.delayed_until = (delay.0 > 0).then(|| now.plus(delay));
        } else {
            task.status = Status::Failed;
            task.finished_at = Some(now);
        }
        task
    }
}
