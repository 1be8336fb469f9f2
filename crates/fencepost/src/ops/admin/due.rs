use crate::{
    caller::Access,
    clock::Time,
    db::{Due as DueNow, Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Get the next deadline: the end of a lease, of a claim's time limit, or of a delay.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Due {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NextDue {
    /// A deadline has passed: `admin/expire` or the next claim handles it.
    pub due: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Time>,
}

impl NextDue {
    pub(super) async fn read(tx: &mut Tx<'_>) -> Result<Self> {
        let due = DueNow::read(&tx.one(Stmt::read(tx.reads_due(), params![])).await?)?;
        Ok(Self { due: due.is_due(tx.now), next_at: due.at })
    }
}

impl Op for Due {
    const NAME: &'static str = "admin/due";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = NextDue;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<NextDue> {
        NextDue::read(tx).await
    }
}
