use super::Key;
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::check,
    log::access::keys,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// List the keys, newest first, without their secrets.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Also revoked keys.
    #[serde(default)]
    pub all: bool,
    /// At most this many (default 100, at most 1000).
    #[serde(default)]
    pub limit: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Keys {
    pub keys: Vec<Key>,
}

impl Op for List {
    const NAME: &'static str = "key/list";
    const ACCESS: Access = Access::Admin;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Keys;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Keys> {
        let limit = self.limit.unwrap_or(100);
        check::range("limit", limit, 1, 1000)?;
        let rows = tx
            .query(
                keys!("where ?1 = 1 or revoked_at is null order by id desc limit ?2"),
                params![i64::from(self.all), limit],
            )
            .await?;
        Ok(Keys { keys: rows.iter().map(Key::read).collect::<Result<_>>()? })
    }
}
