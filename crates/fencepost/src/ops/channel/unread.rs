use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::check,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Count an agent's unread posts and unread mentions, per channel.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unread {
    pub agent: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    pub channels: Vec<UnreadChannel>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UnreadChannel {
    pub channel: String,
    /// The last post that it has read.
    pub cursor: i64,
    pub posts: i64,
    pub mentions: i64,
    /// The run that holds the mentions, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
}

impl Op for Unread {
    const NAME: &'static str = "channel/unread";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = r#"{"agent":"codex-1"}"#;
    const READS: bool = true;
    type Reply = Summary;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Summary> {
        check::plain_name("agent", &self.agent)?;
        let rows = tx
            .query(
                "select reader.channel, reader.read_n, channel.next_n - 1 - reader.read_n as posts,
                   (select count(*) from mention where mention.agent = reader.agent
                     and mention.channel = reader.channel and mention.n > reader.read_n) as mentions,
                   (select run.name from run where run.key = reader.run and run.ended_at is null
                     and run.expires_at > ?2 and (reader.until_at is null or reader.until_at > ?2)) as held_by
                 from reader join channel on channel.name = reader.channel
                 where reader.agent = ?1 and channel.next_n - 1 > reader.read_n
                 and (reader.member = 1 or reader.mentioned_n > reader.read_n) order by reader.channel limit 1000",
                params![&self.agent, tx.now],
            )
            .await?;
        let channels = rows.iter().map(|row| {
            Ok(UnreadChannel {
                channel: row.get("channel")?,
                cursor: row.get("read_n")?,
                posts: row.get("posts")?,
                mentions: row.get("mentions")?,
                held_by: row.get("held_by")?,
            })
        });
        Ok(Summary { channels: channels.collect::<Result<_>>()? })
    }
}
