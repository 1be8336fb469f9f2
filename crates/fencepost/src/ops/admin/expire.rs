use super::due::NextDue;
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
    lease::expiry,
    ops::nouns,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Expire one bounded batch: end expired runs, give their items back, and make items ready whose delay is over. Every
/// claim does this first, and a server does it regularly.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expire {}

impl Op for Expire {
    const NAME: &'static str = "admin/expire";
    const FORMERLY: Option<&'static str> = Some("admin/settle");
    const ACCESS: Access = Access::Admin;
    // Never: a repeat would expire another batch.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = "{}";
    type Reply = NextDue;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<NextDue> {
        expiry::sweep(tx, nouns()).await?;
        NextDue::read(tx).await
    }
}
