use super::{
    list,
    pause::{named, shown},
};
use crate::{
    caller::Access,
    db::{Batch, Stmt, Tx, set},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    log::Event,
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Resume a paused agent, or all of them: polls get triggers again.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// The agent. Name one, or set `all`.
    #[serde(default)]
    pub agent: Option<String>,
    /// All agents. An agent's key may not do that.
    #[serde(default)]
    pub all: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Resumed {
    pub agents: Vec<list::Agent>,
}

impl Op for Resume {
    const NAME: &'static str = "agent/resume";
    const ACCESS: Access = Access::Agent;
    // Never: a repeat could lift a pause that somebody began meanwhile.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"agent":"codex-1"}"#;
    type Reply = Resumed;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Resumed> {
        let mut paused = named(tx, self.agent.as_deref(), self.all).await?;
        paused.retain(|agent| agent.paused(tx.now).is_some());
        if !paused.is_empty() {
            let names = set(paused.iter().map(|agent| serde_json::json!({ "name": agent.name })))?;
            let events = paused.iter().map(|agent| Event {
                topic: Some(Topic::agent(&agent.name)),
                ..Event::new("agent.resumed", format!("agent/{}", agent.name))
            });
            let mut batch = Batch::new();
            batch.add(Stmt::write(
                "update agent set paused_at = null, paused_until = null, paused_reason = null
                 where name in (select value ->> 'name' from json_each(?1))",
                params![names],
            ));
            batch.add(Event::insert_many(tx, events.collect())?);
            tx.send(batch).await?;
        }
        Ok(Resumed { agents: shown(tx, self.agent.as_deref()).await? })
    }
}
