use super::{Now, Record, Status, Task, full, load, not_found};
use crate::{
    caller::Access,
    clock::Time,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
    ids::TaskId,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// List every reason why a task cannot be claimed, and when each could end.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Why {
    pub task: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Because {
    /// No reason: the task can be claimed.
    pub ready: bool,
    pub reasons: Vec<Reason>,
    pub task: Task,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reason {
    /// `finished`, `held`, `offered`, `assigned`, `blocked`, `parked` or `delayed`.
    pub what: String,
    pub message: String,
    /// When the reason could end without anyone acting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

impl Op for Why {
    const NAME: &'static str = "task/why";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = r#"{"task":"auth-3"}"#;
    const READS: bool = true;
    type Reply = Because;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Because> {
        let id = TaskId::check("task", &self.task)?;
        let task = load(tx, &id).await?.ok_or_else(|| not_found(&id))?;
        let task = Now::read(tx).await?.of(task);
        let view = full(tx, vec![task.clone()]).await?.remove(0);
        let reasons = reasons(&task, &view);
        Ok(Because { ready: reasons.is_empty(), reasons, task: view })
    }
}

fn reasons(task: &Record, view: &Task) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut say =
        |what: &str, message: String, until| reasons.push(Reason { what: what.into(), message, until });
    if task.status().is_finished() {
        say("finished", format!("it is {}", task.status().as_str()), None);
        return reasons;
    }
    if let Some(hold) = task.hold() {
        say("held", format!("held by {}", hold.describe()), Some(hold.expires_at()));
    }
    match task.status() {
        Status::Offered => {
            say(
                "offered",
                format!("offered to agent `{}`", task.offered_to.as_deref().unwrap_or_default()),
                None,
            );
        }
        Status::Pending => {
            say(
                "assigned",
                format!("only for agent `{}`", task.assignee.as_deref().unwrap_or_default()),
                None,
            );
        }
        _ => {}
    }
    for other in view.after.iter().filter(|other| other.status != Status::Completed) {
        let stuck = matches!(other.status, Status::Failed | Status::Cancelled);
        let until = if stuck { ": fence retry or fence dep rm frees it" } else { "" };
        say("blocked", format!("waits for `{}`, which is {}{until}", other.id, other.status.as_str()), None);
    }
    if let Some(reason) = &task.parked {
        say("parked", format!("set aside: {reason}"), None);
    }
    if let Some(until) = task.delayed_until {
        let message = match (&task.failure_reason, task.was_given_back()) {
            (_, true) => format!("given back, and can be claimed after {until}"),
            (Some(reason), false) => format!("failed ({reason}), and is tried again after {until}"),
            (None, false) => format!("failed, and is tried again after {until}"),
        };
        say("delayed", message, Some(until));
    }
    reasons
}
