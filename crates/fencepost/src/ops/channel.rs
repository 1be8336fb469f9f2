//! Channels: the agents' conversation. Posts are numbered in commit order. A mention is a row. An agent's cursor in a
//! channel is the number of the last post that it has read. Its unread mentions can be claimed
//! (`mentions/AGENT/CHANNEL`).

pub(crate) mod reader;

use crate::{
    clock::Time,
    db::{Batch, Row, Stmt, Tx},
    engine::op::verbs,
    error::{Code, Error, Result},
    limits::check,
    log::Event,
    ops::storm::wakeups,
    params,
    topic::Topic,
};
pub(crate) use post::MENTIONS_MAX;
pub use reader::Mentions;
pub(crate) use reader::{again, claim_for, load};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

verbs![create::Create, list::List, join::Join, leave::Leave, post::Post, read::Read, unread::Unread,];
pub(crate) mod claimable;
pub(crate) mod lapse;
pub(crate) mod prune;
pub(crate) mod release;

/// A post in a channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ChannelPost")]
pub struct PostView {
    pub channel: String,
    /// Its number in the channel.
    pub n: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    pub body: String,
    /// The number of the post that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mentions: Vec<String>,
    pub at: Time,
}

macro_rules! posts {
    ($rest:literal) => {
        concat!("select channel, n, author, body, reply_to, mentions, at from post ", $rest)
    };
}
pub(crate) use posts;

impl PostView {
    fn read(row: &mut Row) -> Result<Self> {
        let mentions: Option<String> = row.take("mentions")?;
        let mentions = mentions.map_or(Ok(Vec::new()), |list| serde_json::from_str(&list));
        Ok(Self {
            channel: row.take("channel")?,
            n: row.take("n")?,
            author: row.take("author")?,
            body: row.take("body")?,
            reply_to: row.take("reply_to")?,
            mentions: mentions.map_err(Error::internal)?,
            at: row.take("at")?,
        })
    }
}

pub(crate) fn not_found(channel: &str) -> Error {
    Error::new(Code::NotFound, format!("there is no channel `{channel}`"))
        .hint("fence channel list lists the channels; fence channel create creates one")
}

/// The number of the channel's next post.
async fn next_number(tx: &mut Tx<'_>, channel: &str) -> Result<i64> {
    let rows = tx.query("select next_n from channel where name = ?1", params![channel]).await?;
    rows.first().ok_or_else(|| not_found(channel))?.get("next_n")
}

/// Creates the agent's reader row in the channel, if it has none: when it joins, or when it first reads.
fn enter(agent: &str, channel: &str, now: Time) -> Stmt {
    Stmt::write(
        "insert into reader(agent, channel, updated_at) values (?1, ?2, ?3) on conflict (agent, channel) do nothing",
        params![agent, channel, now],
    )
}

/// Makes the agent a member of the channel, or no longer one. Logs an event only if that changed. An agent that leaves is woken no
/// more, and one that joins is woken for the posts that it has not read.
async fn set_member(tx: &mut Tx<'_>, agent: &str, channel: &str, member: bool) -> Result<()> {
    check::plain_name("channel", channel)?;
    check::plain_name("agent", agent)?;
    tx.caller.acting_as("agent", Some(agent))?;
    next_number(tx, channel).await?;
    let mut batch = Batch::new();
    batch.add(enter(agent, channel, tx.now));
    let changed = batch.add(Stmt::write(
        "update reader set member = ?4, updated_at = ?3,
           wake_n = case when ?4 = 1 then coalesce((select n from post where post.channel = ?2 and post.quiet = 0
             and coalesce(post.author, '') <> ?1 order by n desc limit 1), wake_n) else wake_n end,
           wake_at = case when ?4 = 1 then cast(?3 as bigint) end
         where agent = ?1 and channel = ?2 and member <> ?4",
        params![agent, channel, tx.now, i64::from(member)],
    ));
    if tx.send(batch).await?.affected(changed) == 1 {
        let kind = if member { "channel.joined" } else { "channel.left" };
        let event = Event {
            topic: Some(Topic::Nobody),
            agent: Some(agent.to_owned()),
            ..Event::new(kind, format!("channel/{channel}"))
        };
        tx.one(event.insert(tx)).await?;
        if !member {
            wakeups::drop_read_by(tx, agent, channel, i64::MAX).await?;
        }
    }
    Ok(())
}
