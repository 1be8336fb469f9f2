use super::Key;
use crate::{
    caller::Access,
    db::{Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::{Error, Result},
    limits::check,
    log::{
        Event,
        access::{digest, hex},
    },
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Create a key for calling this fleet over the network. Only this reply contains its secret. Once a fleet has had
/// a key, its server always requires one.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Add {
    pub name: String,
    /// The highest access it gives: `reader`, `agent` or `admin`.
    pub role: Access,
    /// The agent that an agent's key acts as (default: the key's name).
    #[serde(default)]
    pub agent: Option<String>,
}

impl Add {
    pub fn new(name: impl Into<String>, role: Access) -> Self {
        Self { name: name.into(), role, agent: None }
    }
}

#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Added {
    pub key: Key,
    /// Send it as `Authorization: Bearer …`, or set FENCE_KEY. It cannot be shown again.
    pub secret: String,
}

/// Leaves the secret out of logs.
impl std::fmt::Debug for Added {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Added").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Op for Add {
    const NAME: &'static str = "key/add";
    const ACCESS: Access = Access::Admin;
    // Never: a repeat would make a second key.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"name":"deploy","role":"reader"}"#;
    type Reply = Added;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Added> {
        check::plain_name("name", &self.name)?;
        check::optional_name("agent", self.agent.as_deref())?;
        let agent = match (self.role, self.agent) {
            (Access::Agent, agent) => Some(agent.unwrap_or_else(|| self.name.clone())),
            (_, None) => None,
            (_, Some(_)) => {
                return Err(Error::invalid("agent", "is only for a key with the role agent")
                    .hint("only an agent's key acts as one agent: --role agent"));
            }
        };
        let secret = secret()?;
        let insert = Stmt::write(
            "insert into access_key(name, digest, role, agent, created_at) values (?1, ?2, ?3, ?4, ?5)
             on conflict (name) where revoked_at is null do nothing returning id",
            params![&self.name, digest(&secret), self.role.as_str(), agent.as_deref(), tx.now],
        );
        let inserted = tx.one(insert).await?.rows;
        let Some(row) = inserted.first() else {
            return Err(Error::invalid("name", format!("is taken: there is a key `{}`", self.name)).hint(
                format!("fence key revoke {} ends that one, and its name can be used again", self.name),
            ));
        };
        let id = row.get("id")?;
        tx.execute("update fleet set keyed = 1 where keyed = 0", params![]).await?;
        let details = serde_json::json!({ "role": self.role, "for": agent });
        let event = Event::new("key.added", format!("key/{}", self.name)).details(details).insert(tx);
        tx.one(event).await?;
        let key = Key { id, name: self.name, role: self.role, agent, created_at: tx.now, revoked_at: None };
        Ok(Added { key, secret })
    }
}

fn secret() -> Result<String> {
    let mut random = [0; 32];
    getrandom::fill(&mut random)
        .map_err(|e| Error::internal(format!("the system gave no random numbers: {e}")))?;
    Ok(format!("fence_{}", hex(&random)))
}
