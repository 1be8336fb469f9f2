use super::{Changed, Phase, Record, change};
use crate::{
    caller::Access,
    clock::Time,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::Result,
    limits::{TEXT_MAX, check},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Cancel an unfinished task. If a run holds it, the claim ends, and the holder's guard refuses.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    pub task: String,
    #[serde(default)]
    pub reason: Option<String>,
    /// Request id: repeating the call with the same id changes nothing.
    #[serde(default)]
    pub request: Option<String>,
}

impl Op for Cancel {
    const NAME: &'static str = "task/cancel";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"task":"auth-3"}"#;
    refuses![AlreadyFinished, Cancelled];
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        check::request(self.request.as_deref())?;
        let details = self.reason.as_ref().map(|reason| serde_json::json!({ "reason": reason }));
        change(tx, &self.task, "task.cancelled", details, cancel).await
    }
}

fn cancel(task: &mut Record, now: Time) -> Result<()> {
    task.unfinished()?;
    task.end_claim("cancel", &[], Phase::Cancelled(now));
    Ok(())
}
