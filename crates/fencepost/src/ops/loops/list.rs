use super::{Brief, row};
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::check,
    ops::task,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// List loops, the newest first.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Also loops that are over.
    #[serde(default)]
    pub all: bool,
    /// At most this many (default 100, at most 1000).
    #[serde(default)]
    pub limit: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Loops {
    pub loops: Vec<Brief>,
}

impl Op for List {
    const NAME: &'static str = "loop/list";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Loops;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Loops> {
        let limit = self.limit.unwrap_or(100);
        check::range("limit", limit, 1, 1000)?;
        let rows = tx
            .query(
                "select id, plan, status, reason, started_at, ended_at, summary from loop
                 where ?1 = 1 or ended_at is null order by started_at desc, id limit ?2",
                params![self.all, limit],
            )
            .await?;
        let found = rows.iter().map(row::brief).collect::<Result<Vec<_>>>()?;
        // Active loops are few, and each has up to a thousand stories: they are counted one by one.
        let mut loops = Vec::with_capacity(found.len());
        let overdue = task::overdue(tx, None).await?;
        for (brief, is_counted) in found {
            loops.push(match is_counted {
                true => brief,
                false => match row::Loop::find(tx, &brief.id).await? {
                    Some(active) => active.now(&overdue, tx.now).brief(tx.now),
                    None => brief,
                },
            });
        }
        Ok(Loops { loops })
    }
}
