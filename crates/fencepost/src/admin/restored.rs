use crate::{
    error::Result,
    event::Event,
    op::{Access, Op},
    params,
    tx::Tx,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Say that this database was restored from a backup, so that no fence is given out twice. A SQLite backup made
/// by fence says so by itself; after restoring a PostgreSQL dump, call this before anyone works.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Restored {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Floor {
    /// Every fence from now on is above this.
    pub floor: i64,
}

impl Op for Restored {
    const NAME: &'static str = "admin/restored";
    const ACCESS: Access = Access::Admin;
    type Reply = Floor;

    /// The time in milliseconds is above every count of claims that one resource can have had.
    async fn run(self, tx: &mut Tx<'_>) -> Result<Floor> {
        let rows = tx
            .query(
                "update fleet set floor = case when floor > ?1 then floor else ?1 end, restored = 0 returning floor",
                params![tx.now],
            )
            .await?;
        tx.one(Event::new("fleet.restored", "fleet").insert(tx)).await?;
        Ok(Floor { floor: rows[0].get("floor")? })
    }
}
