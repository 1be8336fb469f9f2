use crate::{
    caller::Access,
    db::{Batch, Stmt, Tx},
    engine::{
        op::{OnRetry, Op, erased},
        prelude::Prelude,
    },
    error::Result,
    ids::floor_after_restore,
    log::{EPOCH, Event},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Declare that this database was restored from a backup, so that no fence is issued twice. A SQLite backup made by
/// fence needs no such call. A PostgreSQL dump that was restored elsewhere is detected, and refused until this call. A
/// point-in-time recovery, a restored snapshot or a failover cannot be detected: call this before any agent works.
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
    // Never: a repeat would raise the floor again, and refuse clients that have begun to work.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = "{}";
    type Reply = Floor;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::declares_restore()
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Floor> {
        let rows = tx.query("select floor from fleet /*pg for update*/", params![]).await?;
        let floor = floor_after_restore(rows[0].get("floor")?, tx.now);
        tx.notes.due_changed = true;
        let batch = Batch::from([
            Stmt::write("update fleet set floor = ?1, restored = 0", params![floor]),
            Stmt::write(
                "update fleet set system = nullif(current_setting('fencepost.system', true), ''),
                   schema_oid = quote_ident(current_schema())::regnamespace::oid::bigint,
                   epoch = epoch + 1, pruned_xact = pruned_xact - ?1",
                params![EPOCH],
            )
            .only_on_postgres(),
            // A new cluster numbers its transactions from the start. The old log keeps its order and comes before them.
            Stmt::write("update event set ord = ord - ?1, xact = null", params![EPOCH]).only_on_postgres(),
        ]);
        tx.send(batch).await?;
        tx.one(Event::new("fleet.restored", "fleet").insert(tx)).await?;
        Ok(Floor { floor })
    }
}
