use super::set_member;
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Join a channel. Its posts count as unread for the agent, from the first one on.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Join {
    pub channel: String,
    pub agent: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Joined {
    pub channel: String,
    pub agent: String,
}

impl Op for Join {
    const NAME: &'static str = "channel/join";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"channel":"general","agent":"codex-1"}"#;
    type Reply = Joined;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Joined> {
        set_member(tx, &self.agent, &self.channel, true).await?;
        Ok(Joined { channel: self.channel, agent: self.agent })
    }
}
