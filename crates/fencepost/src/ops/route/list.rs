use super::{Route, in_force};
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// List the rules for outside messages, in the order in which they are tried.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Routes {
    pub routes: Vec<Route>,
}

impl Op for List {
    const NAME: &'static str = "route/list";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Routes;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Routes> {
        Ok(Routes { routes: in_force(tx).await? })
    }
}
