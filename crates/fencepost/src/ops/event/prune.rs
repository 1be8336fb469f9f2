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
/// How long a client may repeat a request id or idempotency key.
pub(crate) const REQUESTS_KEPT: Millis = Millis::days(7);
const BATCH: i64 = 1000;

/// Remove old events, a bounded number per call. Events that a repeated request may need are kept for 7 days.
/// Events age only while the fleet is in use: a longer time without calls counts as one hour.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prune {
    /// Remove events older than this (default 30 days).
    #[serde(default)]
    pub older_than_ms: Option<Millis>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pruned {
    pub removed: u64,
    /// There is more to remove: repeat the call.
    pub more: bool,
}

impl Op for Prune {
    const NAME: &'static str = "event/prune";
    const ACCESS: Access = Access::Admin;
    // Never: a repeat would also remove what became old enough meanwhile.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = "{}";
    type Reply = Pruned;
    erased!();

    /// Removes the oldest events up to one position, so that a follower can learn that it missed events.
    async fn run(self, tx: &mut Tx<'_>) -> Result<Pruned> {
        let age = self.older_than_ms.unwrap_or(HISTORY);
        check::span("older_than_ms", age, Millis(0), Millis(TTL_MAX.0 * 400))?;
        let in_use = InUse::read(tx).await?;
        let (before, keep) = (in_use.ago(age), in_use.ago(REQUESTS_KEPT));
        // On PostgreSQL a running transaction may still write events before newer ones. Cut only where followers
        // can read, or they would miss those events.
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
