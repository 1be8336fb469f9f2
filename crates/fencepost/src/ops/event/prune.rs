use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::{Tx, in_use::InUse},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::{TTL_MAX, check},
    log::Position,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) const HISTORY: Millis = Millis::days(30);
/// How long a client may ask again with the same request id or idempotency key.
pub(crate) const REQUESTS_KEPT: Millis = Millis::days(7);
const BATCH: i64 = 1000;

/// Remove old events, a bounded number at a time. What can still be asked for again is kept for 7 days. They age only while
/// the fleet is in use: of a longer time in which nobody called, an hour counts.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prune {
    /// Remove events older than this (30 days unless said).
    #[serde(default)]
    pub older_than_ms: Option<Millis>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pruned {
    pub removed: u64,
    /// There is more to remove: ask again.
    pub more: bool,
}

impl Op for Prune {
    const NAME: &'static str = "event/prune";
    const ACCESS: Access = Access::Admin;
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = "{}";
    type Reply = Pruned;
    erased!();

    /// The oldest go first, and the log is cut at one place, so that a follower can be told what it missed.
    async fn run(self, tx: &mut Tx<'_>) -> Result<Pruned> {
        let age = self.older_than_ms.unwrap_or(HISTORY);
        check::span("older_than_ms", age, Millis(0), Millis(TTL_MAX.0 * 400))?;
        let in_use = InUse::read(tx).await?;
        let (before, keep) = (in_use.ago(age), in_use.ago(REQUESTS_KEPT));
        // On PostgreSQL a transaction that still runs may yet write before a newer one's events. Cut only where
        // followers can read, or they would miss it.
        let oldest = tx
            .query(
                "select ord, id, at, request from event
                 /*pg where ord < pg_snapshot_xmin(pg_current_snapshot())::text::bigint*/
                 order by /*pg ord,*/ id limit ?1",
                params![BATCH],
            )
            .await?;
        let mut last = None;
        for row in &oldest {
            let at: Time = row.get("at")?;
            let asked_for = row.get::<Option<String>>("request")?.is_some() && at >= keep;
            if at >= before || asked_for {
                break;
            }
            last = Some(Position { ord: row.get("ord")?, id: row.get("id")? });
        }
        let Some(last) = last else { return Ok(Pruned { removed: 0, more: false }) };
        let removed = tx
            .execute(
                "delete from event where (/*pg ord,*/ id) <= (/*pg ?1,*/ ?2)",
                params![last.ord, last.id],
            )
            .await?;
        tx.execute(
            "update fleet set pruned_xact = ?1, pruned_id = ?2 where (pruned_xact, pruned_id) < (?1, ?2)",
            params![last.ord, last.id],
        )
        .await?;
        Ok(Pruned { removed, more: removed >= BATCH as u64 })
    }
}
