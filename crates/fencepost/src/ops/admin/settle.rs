use super::due::NextDue;
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{Op, erased},
    error::Result,
    lease::expiry,
    ops::nouns,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Give back what the dead held, and wake what slept long enough: a bounded number at a time. Whoever claims does so
/// anyway; a server does it without anyone asking.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settle {}

impl Op for Settle {
    const NAME: &'static str = "admin/settle";
    const ACCESS: Access = Access::Admin;
    type Reply = NextDue;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<NextDue> {
        expiry::sweep(tx, nouns()).await?;
        NextDue::look(tx).await
    }
}
