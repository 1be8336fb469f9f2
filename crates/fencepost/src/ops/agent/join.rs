use super::{PRESENCE, Role, STRAND, list};
use crate::{
    caller::Access,
    clock::Millis,
    db::{Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::{Error, Result},
    lease::hold::write_logged,
    limits::{TTL_MAX, check},
    log::Event,
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Add an agent, or change its settings. Fields that are left out stay unchanged.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Join {
    pub agent: String,
    /// Default: `worker`.
    #[serde(default)]
    pub role: Option<Role>,
    /// It takes only pool tasks whose tags are all in this list. An empty list takes any task.
    #[serde(default)]
    pub capabilities: Option<Vec<String>>,
    /// Limit on the triggers it has at a time (default: no limit; 0 removes the limit).
    #[serde(default)]
    pub max_concurrent: Option<i64>,
    /// Delay from going offline until tasks offered or assigned to it go back to the pool (default 30 minutes).
    #[serde(default)]
    pub strand_ms: Option<Millis>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Joined {
    pub agent: list::Agent,
}

impl Op for Join {
    const NAME: &'static str = "agent/join";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"agent":"codex-1"}"#;
    type Reply = Joined;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Joined> {
        check::plain_name("agent", &self.agent)?;
        tx.caller.acting_as("agent", Some(&self.agent))?;
        check::tags("capabilities", self.capabilities.as_deref().unwrap_or_default())?;
        check::range("max_concurrent", self.max_concurrent.unwrap_or(0), 0, 1000)?;
        check::span("strand_ms", self.strand_ms.unwrap_or(STRAND), Millis(0), TTL_MAX)?;
        let until = tx.now.plus(PRESENCE);
        let capabilities = self.capabilities.as_ref().map(|list| serde_json::json!(list).to_string());
        let event = Event {
            agent: Some(self.agent.clone()),
            topic: Some(Topic::agent(&self.agent)),
            details: Some(serde_json::to_value(&self).map_err(Error::internal)?),
            ..Event::new("agent.joined", format!("agent/{}", self.agent))
        };
        let join = Stmt::write(
                "insert into agent(name, role, capabilities, max_concurrent, strand_ms, joined_at, heard_until, strands_at, wakes_until, asleep)
                 values (?1, coalesce(?2, 'worker'), ?3, nullif(cast(?4 as bigint), 0),
                   coalesce(cast(?5 as bigint), cast(?8 as bigint)), ?6, cast(?7 as bigint),
                   cast(?7 as bigint) + coalesce(cast(?5 as bigint), cast(?8 as bigint)), cast(?7 as bigint), 1)
                 on conflict (name) do update set role = coalesce(?2, agent.role),
                   capabilities = coalesce(?3, agent.capabilities),
                   max_concurrent = nullif(coalesce(cast(?4 as bigint), agent.max_concurrent), 0),
                   strand_ms = coalesce(cast(?5 as bigint), agent.strand_ms), heard_until = cast(?7 as bigint),
                   strands_at = cast(?7 as bigint) + coalesce(cast(?5 as bigint), agent.strand_ms), left_at = null,
                   wakes_until = cast(?7 as bigint), asleep = 1",
                params![
                    &self.agent,
                    self.role.map(Role::as_str),
                    capabilities,
                    self.max_concurrent,
                    self.strand_ms,
                    tx.now,
                    until,
                    STRAND,
                ],
            );
        let event = event.insert(tx);
        write_logged(tx, join, event).await?;
        let agent = list::of(tx, &self.agent).await?;
        Ok(Joined { agent: agent.ok_or_else(|| Error::internal("the agent has no row"))? })
    }
}
