use super::{Changed, Phase, Record, change_under};
use crate::{
    caller::Access,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::Result,
    ids::Token,
    lease::Under,
    limits::{TEXT_MAX, check},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Reject an offered task, with a reason: it goes back to the pool. While a run reviews the task, only that
/// run may reject it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reject {
    pub task: String,
    /// The agent that the task was offered to.
    pub agent: String,
    pub reason: String,
    /// The token of the review, if a run reviews the task.
    #[serde(default)]
    pub token: Option<String>,
    /// Request id: repeating the call with the same id changes nothing.
    #[serde(default)]
    pub request: Option<String>,
}

impl Op for Reject {
    const NAME: &'static str = "task/reject";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str =
        r#"{"task":"auth-3","agent":"codex-1","reason":"no access to that repository"}"#;
    refuses![NotReady, AlreadyClaimed, LeaseExpired, AlreadyFinished, Cancelled];
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        self.token.as_deref().map_or_else(Prelude::nothing, Prelude::holds).once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        check::plain_name("agent", &self.agent)?;
        tx.caller.acting_as("agent", Some(&self.agent))?;
        check::line("reason", &self.reason, TEXT_MAX)?;
        let token = self.token.as_deref().map(Token::check).transpose()?;
        check::request(self.request.as_deref())?;
        let details = Some(serde_json::json!({ "reason": self.reason, "by": self.agent }));
        let under = if token.is_some() { Under::Claim } else { Under::NoClaim };
        change_under(tx, &self.task, "task.rejected", details, under, |task, now| {
            super::accept::deciding(task, &self.agent, token.as_ref(), now)?;
            reject(task, &self.reason);
            Ok(())
        })
        .await
    }
}

fn reject(task: &mut Record, reason: &str) {
    (task.offered_to, task.offered_at) = (None, None);
    task.rejection_reason = Some(reason.into());
    task.end_claim("reject", &[], Phase::Unassigned);
}
