use super::{
    Effect, Status,
    record::{Record, columns},
};
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::check,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// List the effects by key, a page at a time, without their outputs.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Only effects with this status.
    #[serde(default)]
    pub status: Option<Status>,
    /// Only keys after this one: the last one of the previous page.
    #[serde(default)]
    pub after: Option<String>,
    /// At most this many (default 100, at most 1000).
    #[serde(default)]
    pub limit: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Effects {
    pub effects: Vec<Effect>,
    /// There is another page.
    pub more: bool,
}

impl Op for List {
    const NAME: &'static str = "once/list";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = r#"{"status":"in_doubt"}"#;
    const READS: bool = true;
    type Reply = Effects;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Effects> {
        let limit = self.limit.unwrap_or(100);
        check::range("limit", limit, 1, 1000)?;
        // A running effect whose claim is lost is in doubt, even if expiry has not written that yet.
        let rows = tx
            .query(
                columns!(
                    "where effect.name > ?1 and (cast(?2 as text) is null or ?2 = case
                       when effect.status = 'running' and not (run.ended_at is null and run.expires_at > ?3
                         and (effect.until_at is null or effect.until_at > ?3)) then 'in_doubt'
                       else effect.status end)
                     order by effect.name limit ?4"
                ),
                params![
                    self.after.as_deref().unwrap_or_default(),
                    self.status.map(Status::as_str),
                    tx.now,
                    limit + 1
                ],
            )
            .await?;
        let mut found = Record::read_all(rows)?;
        let more = found.len() as i64 > limit;
        found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(Effects { effects: found.into_iter().map(|effect| effect.now(tx.now).view()).collect(), more })
    }
}
