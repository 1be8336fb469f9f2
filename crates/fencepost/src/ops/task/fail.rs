use super::{
    Changed, Phase, Record, backoff,
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
    ops::loops::refuse_story,
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
    const EXAMPLE: &'static str = r#"{"token":"task/auth-3@1","reason":"the tests fail on main"}"#;
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
        refuse_story(&found, "fail")?;
        let task = self.apply(&found, tx.now);
        let kind = if matches!(task.phase, Phase::Failed(_)) { "task.failed" } else { "task.retrying" };
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
        let next = if self.retry && task.attempts < task.max_attempts {
            let delay = self.delay_ms.unwrap_or_else(|| backoff(task.attempts));
            task.delayed_until = (delay.0 > 0).then(|| now.plus(delay));
            task.home()
        } else {
            Phase::Failed(now)
        };
        task.end_claim("fail", &self.content(), next);
        task
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{lease::Hold, ops::task::Status};

    #[test]
    fn a_failure_is_final_or_retried_after_a_delay_while_attempts_are_left() {
        let now = Time(1000);
        let held = |attempts, assignee: Option<&str>| {
            let task = Record::sample(Phase::InProgress(Hold::sample("r", 1, Time(2000))));
            Record { attempts, assignee: assignee.map(str::to_owned), lapsed: true, ..task }
        };
        let fail = || Fail::new("task/b-1@1", "no luck");
        let retry = |delay: Option<i64>| Fail { retry: true, delay_ms: delay.map(Millis), ..fail() };
        // Status, and the delay in milliseconds.
        let cases = [
            (fail(), held(1, None), Status::Failed, None),
            (retry(None), held(1, None), Status::Unassigned, Some(10_000)),
            (retry(None), held(2, None), Status::Unassigned, Some(20_000)),
            (retry(None), held(3, None), Status::Failed, None),
            (retry(Some(0)), held(1, None), Status::Unassigned, None),
            (retry(Some(70)), held(2, Some("ann")), Status::Pending, Some(70)),
            (retry(Some(70)), held(3, Some("ann")), Status::Failed, None),
        ];
        for (fail, before, status, delay) in cases {
            let task = fail.apply(&before, now);
            let context = format!("{fail:?} of {before:?}");
            assert_eq!(task.status(), status, "{context}");
            assert_eq!(task.delayed_until, delay.map(|delay| now.plus(Millis(delay))), "{context}");
            assert_eq!((task.lapsed, task.attempts), (false, before.attempts), "{context}");
            assert_eq!(task.failure_reason.as_deref(), Some("no luck"), "{context}");
            assert_eq!(task.last.expect("how the claim ended").verb, "fail", "{context}");
            assert!(task.phase.finished_at().is_none_or(|at| at == now), "{context}");
        }
    }

    #[test]
    fn the_delay_doubles_up_to_ten_minutes() {
        for (attempts, seconds) in [(0, 10), (1, 10), (2, 20), (3, 40), (6, 320), (7, 600), (100, 600)] {
            assert_eq!(backoff(attempts), Millis::seconds(seconds), "after {attempts} attempts");
        }
    }
}
