use super::{Changed, record};
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::check,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Show an effect: its status, its command and its kept result.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Show {
    pub key: String,
}

impl Op for Show {
    const NAME: &'static str = "once/show";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = r#"{"key":"slack-812"}"#;
    const READS: bool = true;
    type Reply = Changed;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        check::path_name("key", &self.key)?;
        Ok(Changed { effect: record::show(tx, &self.key).await? })
    }
}
