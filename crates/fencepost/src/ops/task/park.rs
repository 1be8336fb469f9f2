use super::{Changed, Record, change};
use crate::{
    caller::Access,
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

/// Park a task, with a reason: nobody can claim it until it is unparked. Nothing else changes.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Park {
    pub task: String,
    pub reason: String,
    /// Request id: repeating the call with the same id changes nothing.
    #[serde(default)]
    pub request: Option<String>,
}

impl Op for Park {
    const NAME: &'static str = "task/park";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"task":"auth-3","reason":"waits for the new API"}"#;
    refuses![AlreadyClaimed, AlreadyFinished, Cancelled];
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        check::line("reason", &self.reason, TEXT_MAX)?;
        check::request(self.request.as_deref())?;
        let details = Some(serde_json::json!({ "reason": self.reason }));
        change(tx, &self.task, "task.parked", details, |task, _| park(task, &self.reason)).await
    }
}

fn park(task: &mut Record, reason: &str) -> Result<()> {
    task.unfinished()?;
    task.unheld()?;
    task.parked = Some(reason.into());
    Ok(())
}
