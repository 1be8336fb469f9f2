use super::{alarm, state};
use crate::{
    caller::Access,
    db::{Batch, Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Ask whether `storm/tick` has something to do.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Due {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TickDue {
    pub due: bool,
}

impl Op for Due {
    const NAME: &'static str = "storm/due";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = TickDue;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<TickDue> {
        let mut batch = Batch::new();
        let state = batch.add(state::stmt());
        // The first entry of an index each.
        let work = batch.add(Stmt::read(
            "select (select 1 from channel where marked_n < next_n - 1 order by name limit 1) as posts,
               (select 1 from reader where wake_at <= ?1 order by wake_at limit 1) as pairs,
               (select 1 from agent where asleep = 1 and wakes_until > ?1 order by wakes_until limit 1) as agents",
            params![tx.now],
        ));
        let mut answers = tx.send(batch).await?;
        let (breaker, alarm) = state::read(&answers.take(state).rows)?;
        let work = answers.take(work).rows;
        for part in ["posts", "pairs", "agents"] {
            if work[0].get::<Option<i64>>(part)?.is_some() {
                return Ok(TickDue { due: true });
            }
        }
        let is_cool = breaker.open_until.is_some_and(|until| until <= tx.now);
        Ok(TickDue { due: is_cool || alarm::current(tx).await?.is_some() != alarm.is_some() })
    }
}
