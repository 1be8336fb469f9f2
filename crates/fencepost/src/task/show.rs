use super::{Changed, full, load, not_found};
use crate::{
    error::Result,
    names::TaskId,
    op::{Access, Op, erased},
    tx::Tx,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Show a task with everything that is kept of it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Show {
    pub task: String,
}

impl Op for Show {
    const NAME: &'static str = "task/show";
    const ACCESS: Access = Access::Reader;
    const READS: bool = true;
    type Reply = Changed;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        let id = TaskId::check("task", &self.task)?;
        let task = load(tx, &id).await?.ok_or_else(|| not_found(&id))?;
        let (_, mut views) = full(tx, vec![task], vec![]).await?;
        Ok(Changed { task: views.remove(0) })
    }
}
