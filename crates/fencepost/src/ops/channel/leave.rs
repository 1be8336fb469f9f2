use super::set_member;
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Leave a channel. Mentions still reach the agent.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Leave {
    pub channel: String,
    pub agent: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Left {
    pub channel: String,
    pub agent: String,
}

impl Op for Leave {
    const NAME: &'static str = "channel/leave";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"channel":"general","agent":"codex-1"}"#;
    type Reply = Left;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Left> {
        set_member(tx, &self.agent, &self.channel, false).await?;
        Ok(Left { channel: self.channel, agent: self.agent })
    }
}
