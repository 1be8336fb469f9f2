use super::{set::apply, settings::Setting};
use crate::{
    caller::Access,
    clock::Millis,
    db::{Batch, Stmt, Tx, set},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::{NAME_MAX, check},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// A server that does not renew its environment for this long is gone.
const KEPT: Millis = Millis::minutes(5);

/// Tell the fleet the settings in a server's environment. At the server's start they become the fleet's settings. Later calls keep
/// the server known, so that `storm/show` names servers whose environment differs from the fleet.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// The server, such as `HOST:PORT`.
    pub server: String,
    pub values: BTreeMap<Setting, i64>,
    /// The server starts: set the values.
    #[serde(default)]
    pub start: bool,
    /// The server stops: forget it.
    #[serde(default)]
    pub stop: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EnvironmentKnown {
    /// The settings that this call changed in the fleet.
    pub changed: Vec<Setting>,
}

impl Op for Environment {
    const NAME: &'static str = "storm/environment";
    const ACCESS: Access = Access::Admin;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"server":"build-1:7373","values":{"window_ms":600000},"start":true}"#;
    type Reply = EnvironmentKnown;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<EnvironmentKnown> {
        check::line("server", &self.server, NAME_MAX)?;
        self.values.iter().try_for_each(|(setting, value)| setting.check(*value))?;
        let mut changed = Vec::new();
        if self.start {
            let values = self.values.iter().map(|(setting, value)| (*setting, Some(*value))).collect();
            changed = apply(tx, None, &values, &format!("environment of server {}", self.server)).await?;
        }
        let mut batch = Batch::new();
        batch.add(Stmt::write(
            "delete from server_setting where server = ?1 or until_at <= ?2",
            params![&self.server, tx.now],
        ));
        if !self.stop {
            let rows = self
                .values
                .iter()
                .map(|(setting, value)| json!({ "name": setting.as_str(), "value": value }));
            batch.add(Stmt::write(
                "insert into server_setting(server, name, value, until_at)
                 select cast(?2 as text), value ->> 'name', cast(value ->> 'value' as bigint), cast(?3 as bigint) from json_each(?1)
                 where true order by key on conflict (server, name) do update set value = excluded.value, until_at = excluded.until_at",
                params![set(rows)?, &self.server, tx.now.plus(KEPT)],
            ));
        }
        tx.send(batch).await?;
        Ok(EnvironmentKnown { changed })
    }
}
