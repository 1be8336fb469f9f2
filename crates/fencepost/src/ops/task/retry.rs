use super::{Changed, Phase, Record, change};
use crate::{
    caller::Access,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    ids::TaskId,
    limits::check,
    ops::loops::refuse_story,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Make a failed or cancelled task claimable again, with all its attempts.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    pub task: String,
    /// Request id: repeating the call with the same id changes nothing.
    #[serde(default)]
    pub request: Option<String>,
}

impl Op for Retry {
    const NAME: &'static str = "task/retry";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"task":"auth-3"}"#;
    refuses![NotReady, AlreadyFinished];
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        check::request(self.request.as_deref())?;
        let changed = change(tx, &self.task, "task.retried", None, |task, _| retry(task)).await?;
        // The leads are notified again when the task ends next.
        let id = TaskId::check("task", &self.task)?;
        tx.execute(
            "update task set told = 0 where board = ?1 and n = ?2 and told = 1 and finished_at is null",
            params![&id.board, id.n],
        )
        .await?;
        Ok(changed)
    }
}

fn retry(task: &mut Record) -> Result<()> {
    refuse_story(task, "retry")?;
    if !matches!(task.phase, Phase::Failed(_) | Phase::Cancelled(_)) {
        let message = format!(
            "task `{}` is {}: only failed and cancelled tasks are retried",
            task.id,
            task.status().as_str()
        );
        return Err(match task.phase {
            Phase::Completed(_) => Error::new(Code::AlreadyFinished, message)
                .hint(format!("fence reopen {} adds a new task with the same text", task.id)),
            _ => Error::new(Code::NotReady, message),
        });
    }
    task.phase = task.home();
    (task.attempts, task.lapsed, task.delayed_until) = (0, false, None);
    (task.offered_to, task.offered_at) = (None, None);
    Ok(())
}
