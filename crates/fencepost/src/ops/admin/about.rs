pub use crate::db::about::{Database, Setting};
use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::{Tx, migrate},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Describe the fleet and its database: the fleet's id, the kind and version of the database, its schema, its durability
/// settings, and its time.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct About {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Facts {
    /// The fleet's id: 16 random hexadecimal digits, the same for ever, also after a restore. Traces of the fleet elsewhere,
    /// such as the trailers of git commits, name its first 8.
    pub fleet: String,
    pub database: Database,
    /// The newest schema that this fence knows.
    pub newest_schema_version: i64,
    /// The fleet's time, by which leases end.
    pub now: Time,
    /// Difference between the fleet's time and its clock (this machine's, or the database's). It is above zero if the
    /// clock was set back, or was once too far ahead. `admin/set_clock` corrects it.
    pub ahead_ms: Millis,
    /// Every fence from now on is above this.
    pub floor: i64,
}

impl Op for About {
    const NAME: &'static str = "admin/about";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Facts;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Facts> {
        let database = tx.database().await?;
        let rows = tx.query("select id, floor from fleet", params![]).await?;
        Ok(Facts {
            fleet: rows[0].get("id")?,
            database,
            newest_schema_version: migrate::latest(),
            now: tx.now,
            ahead_ms: tx.opening.ahead,
            floor: rows[0].get("floor")?,
        })
    }
}
