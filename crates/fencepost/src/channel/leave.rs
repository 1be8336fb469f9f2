use super::{enter, next_number};
use crate::{
    error::Result,
    event::{Event, Topic},
    names::check,
    op::{Access, Op},
    params,
    tx::{Stmt, Tx},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Leave a channel. Mentions reach the agent all the same.
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
    const SAME: bool = true;
    type Reply = Left;

    async fn run(self, tx: &mut Tx<'_>) -> Result<Left> {
        check::plain_name("channel", &self.channel)?;
        check::plain_name("agent", &self.agent)?;
        tx.caller.acting_as("agent", Some(&self.agent))?;
        next_number(tx, &self.channel).await?;
        let member = Stmt::new(
            "update reader set member = 0, updated_at = ?3 where agent = ?1 and channel = ?2 and member <> 0",
            params![&self.agent, &self.channel, tx.now],
        );
        let answers = tx.pipeline(vec![enter(&self.agent, &self.channel, tx.now), member]).await?;
        if answers[1].affected == 1 {
            let event = Event {
                topic: Some(Topic::Nobody),
                agent: Some(self.agent.clone()),
                ..Event::new("channel.left", format!("channel/{}", self.channel))
            };
            tx.one(event.insert(tx)).await?;
        }
        Ok(Left { channel: self.channel, agent: self.agent })
    }
}
