use super::{Changed, Now, full_after, load, not_found, reopen};
use crate::{
    caller::Access,
    db::{Batch, Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::{Error, Result},
    ids::TaskId,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Show a task with everything that is stored about it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Show {
    pub task: String,
}

impl Op for Show {
    const NAME: &'static str = "task/show";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = r#"{"task":"auth-3"}"#;
    const READS: bool = true;
    type Reply = Changed;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        let id = TaskId::check("task", &self.task)?;
        let task = load(tx, &id).await?.ok_or_else(|| not_found(&id))?;
        let task = Now::read(tx).await?.of(task);
        let mut batch = Batch::new();
        let again = batch.add(Stmt::read(
            "select board, n from task where idempotency_key = ?1 and idempotency_key is not null",
            params![reopen::key(&id)],
        ));
        let (mut answers, mut views) = full_after(tx, batch, vec![task]).await?;
        let mut task = views.remove(0);
        let again = answers.take(again).rows.into_iter().next();
        let again = again.map(|row| Ok::<_, Error>(TaskId { board: row.get("board")?, n: row.get("n")? }));
        task.reopened_as = again.transpose()?.map(|id| id.to_string());
        Ok(Changed { task })
    }
}
