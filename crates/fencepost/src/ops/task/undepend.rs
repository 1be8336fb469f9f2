use super::{
    Changed, Record, Status,
    depend::{both, recount},
};
use crate::{
    caller::Access,
    db::{Batch, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    limits::{TEXT_MAX, check},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Stop a task from waiting for another.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Undepend {
    pub task: String,
    pub after: String,
    /// The reason. It is kept in the log.
    #[serde(default)]
    pub reason: Option<String>,
    /// Request id: repeating the call with the same id changes nothing.
    #[serde(default)]
    pub request: Option<String>,
}

impl Op for Undepend {
    const NAME: &'static str = "task/undepend";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"task":"auth-3","after":"auth-2"}"#;
    refuses![NotReady];
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        check::request(self.request.as_deref())?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        let (task, other) = both(tx, "undepend", &self.task, &self.after).await?;
        if tx.opening.is_repeat("task.freed", Some(&task.resource()))? {
            return Ok(Changed { task: task.view(tx.now) });
        }
        let removed = tx
            .execute("delete from edge where task = ?1 and depends_on = ?2", params![task.seq, other.seq])
            .await?;
        if removed == 0 {
            let message = format!("task `{}` does not wait for `{}`", task.id, other.id);
            return Err(Error::new(Code::NotFound, message)
                .hint(format!("fence show {} lists its dependencies", task.id)));
        }
        let waited = i64::from(other.status() != Status::Completed);
        let task = Record { waiting_on: task.waiting_on - waited, updated_at: tx.now, ..task };
        let details = serde_json::json!({ "after": other.id.to_string() });
        let event = task.event("task.freed", task.status()).details(details).because(self.reason.as_deref());
        let mut batch = Batch::new();
        recount(&mut batch, &task, event.insert(tx));
        tx.send(batch).await?;
        Ok(Changed { task: task.view(tx.now) })
    }
}
