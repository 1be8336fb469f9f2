use super::{Status, row::Loop};
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
    lease::Verdict,
    ops::{claim, task, task::done::task_token},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Ask whether the claim on a story is still alive, before a side effect. A negative answer is a reply, not an error.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    pub token: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Guarded {
    pub ok: bool,
    /// `ok`, or the reason why not, as a chain reports it: `already_passed` for a story that has passed, else the same as `reason`.
    pub status: String,
    /// The reason as for every claim.
    pub reason: Verdict,
    /// How the story ended, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Status>,
    /// The current claim, if the story is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<claim::Claim>,
}

impl Op for Guard {
    const NAME: &'static str = "loop/guard";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = r#"{"token":"task/auth-v1-1@1"}"#;
    const READS: bool = true;
    type Reply = Guarded;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Guarded> {
        let (_, id) = task_token(&self.token)?;
        let guarded = tx.part(claim::Guard { token: self.token }).await?;
        let overdue = task::overdue(tx, Some(&id.board)).await?;
        let found = Loop::find(tx, &id.board).await?.map(|found| found.now(&overdue, tx.now));
        let story = found.as_ref().and_then(|found| Some(&found.stories[found.story_of(&id).ok()?]));
        let outcome = story.map(|row| row.status()).filter(|status| status.is_ended());
        let status = match (guarded.reason, outcome) {
            (Verdict::AlreadyFinished, Some(Status::Passed)) => "already_passed".to_owned(),
            (reason, _) => reason.as_str().to_owned(),
        };
        Ok(Guarded { ok: guarded.ok, status, reason: guarded.reason, outcome, claim: guarded.claim })
    }
}
