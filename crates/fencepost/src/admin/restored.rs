use crate::{
    claim::jump,
    error::Result,
    event::Event,
    op::{Access, Op, erased},
    params,
    tx::{Stmt, Tx},
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
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Floor> {
        let rows = tx.query("select floor from fleet /*pg for update*/", params![]).await?;
        let floor = jump(rows[0].get("floor")?, tx.now);
        tx.stirred = true;
        tx.pipeline(vec![
            Stmt::new(
                "update fleet set floor = ?1, restored = 0, pruned_xact = 0, pruned_id = case when pruned_xact > 0 then 0 else pruned_id end",
                params![floor],
            ),
            // Transactions are numbered anew in a new cluster; the old log comes before all of them.
            Stmt::lock("update event set ord = 0, xact = null where ord > 0", params![]),
        ])
        .await?;
        tx.one(Event::new("fleet.restored", "fleet").insert(tx)).await?;
        Ok(Floor { floor })
    }
}
