use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::{Batch, Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    lease::ending::end_all,
    log::Event,
    ops::nouns,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Put the fleet's time right after a clock was set too far ahead. A fleet's time never goes back by itself, so that no
/// dead holder lives longer. This takes it back to the clock that it goes by (this machine's on SQLite, the database's on
/// PostgreSQL): it ends every run, so that what they hold goes to others, and moves all deadlines. Set the clock right
/// and stop the agents first.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetClock {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClockSet {
    /// How far the fleet's time was ahead. Nothing was changed if it was less than a second.
    pub was_ahead_ms: Millis,
    /// The fleet's time now.
    pub now: Time,
    /// How many runs were ended.
    pub ended: u64,
}

/// Less than this is drift.
const APART: Millis = Millis::seconds(1);

/// Deadlines beside the ends of claims that were set after the jump: its gap is the first that ends after the right time.
const DEADLINES: [&str; 4] = [
    "update task set delayed_until = delayed_until - ?1
     where delayed_until >= coalesce((select min(at) from gap where at > ?2), ?2)",
    "update message set delayed_until = delayed_until - ?1
     where delayed_until >= coalesce((select min(at) from gap where at > ?2), ?2)",
    "update agent set heard_until = heard_until - ?1
     where heard_until >= coalesce((select min(at) from gap where at > ?2), ?2)",
    "update agent set strands_at = strands_at - ?1
     where strands_at >= coalesce((select min(at) from gap where at > ?2), ?2)",
];

impl Op for SetClock {
    const NAME: &'static str = "admin/set_clock";
    const ACCESS: Access = Access::Admin;
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = "{}";
    type Reply = ClockSet;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<ClockSet> {
        let ahead = tx.opening.ahead;
        if ahead < APART {
            return Ok(ClockSet { was_ahead_ms: ahead, now: tx.now, ended: 0 });
        }
        let ended = end_all(tx, "the clock was put right").await?;
        let now = Time(tx.now.0 - ahead.0);
        let mut batch = Batch::new();
        batch.add(Stmt::write(
            "update fleet set ahead_ms = coalesce(ahead_ms, 0) - ?1, seen_at = ?2, clock_resets = clock_resets + 1",
            params![ahead, now],
        ));
        batch.extend(nouns().set_back(ahead, now));
        batch.extend(DEADLINES.map(|sql| Stmt::write(sql, params![ahead, now])));
        // The jump took no time.
        batch.add(Stmt::write("delete from gap where at > ?1", params![now]));
        tx.send(batch).await?;
        let details = serde_json::json!({ "was_ahead_ms": ahead });
        tx.one(Event::new("fleet.clock_set", "fleet").details(details).insert(tx)).await?;
        tx.notes.due_changed = true;
        tx.notes.clock_set_back = ahead;
        Ok(ClockSet { was_ahead_ms: ahead, now, ended })
    }
}
