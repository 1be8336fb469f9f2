use super::{Changed, Phase, Record, change};
use crate::{
    caller::Access,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::Result,
    limits::check,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Assign an unassigned task to an agent. Only that agent's runs can claim it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Assign {
    pub task: String,
    pub to: String,
    /// Request id: repeating the call with the same id changes nothing.
    #[serde(default)]
    pub request: Option<String>,
}

impl Op for Assign {
    const NAME: &'static str = "task/assign";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"task":"auth-3","to":"codex-1"}"#;
    refuses![NotReady, AlreadyClaimed, AlreadyFinished, Cancelled];
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        check::plain_name("to", &self.to)?;
        check::request(self.request.as_deref())?;
        let details = Some(serde_json::json!({ "to": self.to }));
        change(tx, &self.task, "task.assigned", details, |task, _| assign(task, &self.to)).await
    }
}

fn assign(task: &mut Record, to: &str) -> Result<()> {
    super::offer::unassigned(task)?;
    task.phase = Phase::Pending;
    task.assignee = Some(to.into());
    Ok(())
}
