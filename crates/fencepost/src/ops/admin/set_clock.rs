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

/// Set the fleet's time back after a clock was too far ahead. A fleet's time never goes back by itself, because that
/// would extend expired leases. This call sets it to its clock (this machine's on SQLite, the database's on
/// PostgreSQL), ends every run and gives its items back, and moves all deadlines. Correct the clock and stop the agents
/// first.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetClock {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClockSet {
    /// Time by which the fleet was ahead of its clock. Below one second nothing is changed.
    pub was_ahead_ms: Millis,
    /// The fleet's time now.
    pub now: Time,
    /// Number of runs that were ended.
    pub ended: u64,
}

/// A smaller difference is drift, and is not corrected.
const DRIFT_MAX: Millis = Millis::seconds(1);

/// Moves the deadlines that were set after the jump, apart from those of claims. The jump is the first gap that ends
/// after the right time.
const DEADLINES: [&str; 10] = [
    "update task set delayed_until = delayed_until - ?1
     where delayed_until >= coalesce((select min(at) from gap where at > ?2), ?2)",
    "update message set delayed_until = delayed_until - ?1
     where delayed_until >= coalesce((select min(at) from gap where at > ?2), ?2)",
    "update agent set heard_until = heard_until - ?1
     where heard_until >= coalesce((select min(at) from gap where at > ?2), ?2)",
    "update agent set paused_until = paused_until - ?1
     where paused_until >= coalesce((select min(at) from gap where at > ?2), ?2)",
    "update agent set strands_at = strands_at - ?1
     where strands_at >= coalesce((select min(at) from gap where at > ?2), ?2)",
    "update agent set wakes_until = wakes_until - ?1
     where wakes_until >= coalesce((select min(at) from gap where at > ?2), ?2)",
    "update reader set wake_at = wake_at - ?1
     where wake_at >= coalesce((select min(at) from gap where at > ?2), ?2)",
    "update storm set open_until = open_until - ?1
     where open_until >= coalesce((select min(at) from gap where at > ?2), ?2)",
    "update triggered set at = at - ?1 where at >= coalesce((select min(at) from gap where at > ?2), ?2)",
    "update wakeup set at = at - ?1 where at >= coalesce((select min(at) from gap where at > ?2), ?2)",
];

impl Op for SetClock {
    const NAME: &'static str = "admin/set_clock";
    const ACCESS: Access = Access::Admin;
    // Never: a repeat would move the clock a second time.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = "{}";
    type Reply = ClockSet;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<ClockSet> {
        let ahead = tx.opening.ahead;
        if ahead < DRIFT_MAX {
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
        // The jump was not idle time, so delete its gap.
        batch.add(Stmt::write("delete from gap where at > ?1", params![now]));
        tx.send(batch).await?;
        let details = serde_json::json!({ "was_ahead_ms": ahead });
        tx.one(Event::new("fleet.clock_set", "fleet").details(details).insert(tx)).await?;
        tx.notes.due_changed = true;
        tx.notes.clock_set_back = ahead;
        Ok(ClockSet { was_ahead_ms: ahead, now, ended })
    }
}
