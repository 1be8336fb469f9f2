use super::{join::Joined, list, not_found, recall};
use crate::{
    caller::Access,
    db::{Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::{TEXT_MAX, check},
    log::Event,
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Remove an agent from the fleet. Tasks offered or assigned to it that are not started go back to the pool.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Leave {
    pub agent: String,
    /// Reason, for the log.
    #[serde(default)]
    pub reason: Option<String>,
}

impl Op for Leave {
    const NAME: &'static str = "agent/leave";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"agent":"codex-1"}"#;
    type Reply = Joined;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Joined> {
        check::plain_name("agent", &self.agent)?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        tx.caller.acting_as("agent", Some(&self.agent))?;
        let reason = self.reason.as_deref();
        let event = Event {
            agent: Some(self.agent.clone()),
            topic: Some(Topic::Nobody),
            ..Event::new("agent.left", format!("agent/{}", self.agent))
        };
        let leave = Stmt::write(
            "update agent set left_at = ?2, heard_until = ?2, wakes_until = ?2, strands_at = ?2 where name = ?1 and left_at is null",
            params![&self.agent, tx.now],
        );
        if tx.one(leave).await?.affected == 1 {
            tx.one(event.because(reason).insert(tx)).await?;
            // One batch now. Further batches are due at once, and the next claim's expiry handles them.
            recall::give_back(tx, &self.agent, reason).await?;
        }
        let agent = list::of(tx, &self.agent).await?;
        Ok(Joined { agent: agent.ok_or_else(|| not_found(&self.agent))? })
    }
}
