use super::create::Channel;
use crate::{
    caller::Access,
    db::{Batch, Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::check,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// List the channels with their members.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Only channels that this agent joined.
    #[serde(default)]
    pub agent: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Channels {
    pub channels: Vec<Channel>,
}

impl Op for List {
    const NAME: &'static str = "channel/list";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Channels;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Channels> {
        check::optional_name("agent", self.agent.as_deref())?;
        let mut batch = Batch::new();
        let channels = batch.add(Stmt::read(
            "select name, description, next_n, creator, created_at from channel
             where cast(?1 as text) is null or exists (
               select 1 from reader where reader.agent = ?1 and reader.channel = name and member = 1)
             order by name limit 1000",
            params![self.agent.as_deref()],
        ));
        let members = batch.add(Stmt::read(
            "select channel, agent from reader where member = 1 order by channel, agent limit 10000",
            params![],
        ));
        let mut answers = tx.send(batch).await?;
        let channels = answers.take(channels).rows;
        let mut channels = channels.iter().map(Channel::read).collect::<Result<Vec<_>>>()?;
        for row in answers.take(members).rows {
            let name: String = row.get("channel")?;
            if let Some(channel) = channels.iter_mut().find(|channel| channel.name == name) {
                channel.members.push(row.get("agent")?);
            }
        }
        Ok(Channels { channels })
    }
}
