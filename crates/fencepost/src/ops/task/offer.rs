use super::{Changed, Phase, Record, change};
use crate::{
    caller::Access,
    clock::Time,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    limits::check,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Offer an unassigned task to an agent, which may accept or reject it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    pub task: String,
    pub to: String,
    /// Request id: repeating the call with the same id changes nothing.
    #[serde(default)]
    pub request: Option<String>,
}

impl Op for Offer {
    const NAME: &'static str = "task/offer";
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
        change(tx, &self.task, "task.offered", details, |task, now| offer(task, &self.to, now)).await
    }
}

fn offer(task: &mut Record, to: &str, now: Time) -> Result<()> {
    unassigned(task)?;
    task.phase = Phase::Offered;
    (task.offered_to, task.offered_at) = (Some(to.into()), Some(now));
    (task.rejection_reason, task.reviews) = (None, 0);
    Ok(())
}

/// Only an unassigned task can be offered or assigned.
pub(super) fn unassigned(task: &Record) -> Result<()> {
    task.unfinished()?;
    task.unheld()?;
    if matches!(task.phase, Phase::Unassigned) {
        return Ok(());
    }
    let agent = task.assignee.as_deref().or(task.offered_to.as_deref()).unwrap_or_default();
    let message = format!(
        "task `{}` is {} to agent `{agent}`",
        task.id,
        if task.assignee.is_some() { "assigned" } else { "offered" }
    );
    let hint = if task.assignee.is_some() {
        format!("fence cancel {} and add a new task, or leave it to that agent", task.id)
    } else {
        format!("fence reject {} --agent {agent} gives it back", task.id)
    };
    Err(Error::new(Code::NotReady, message).with("agent", agent).hint(hint))
}
