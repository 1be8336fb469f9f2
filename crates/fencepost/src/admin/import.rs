mod agents;
mod cursors;
mod messages;
mod posts;

use crate::{
    agent::Role,
    clock::Time,
    error::Result,
    inbox::Content,
    names::{NAME_MAX, PLAN_MAX, check},
    op::{Access, Op, erased},
    tx::Tx,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bring agents, what is in their inboxes and their channels along from elsewhere, as they are there, in one transaction:
/// all or none. What is there already, by its source and id, is left alone, so importing again changes nothing. Tasks
/// have an import of their own.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Import {
    /// The system it comes from, such as `agent-swarm`.
    pub source: String,
    #[serde(default)]
    pub agents: Vec<AgentItem>,
    #[serde(default)]
    pub channels: Vec<ChannelItem>,
    /// In their order: it becomes that of their numbers.
    #[serde(default)]
    pub posts: Vec<PostItem>,
    /// How far agents have read, moved over what is imported and nothing else.
    #[serde(default)]
    pub cursors: Vec<CursorItem>,
    /// In their order.
    #[serde(default)]
    pub messages: Vec<MessageItem>,
    /// Say what would happen, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// An agent as it is elsewhere. What is assigned or offered to it waits for its first poll here, for up to 30 days.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentItem {
    pub name: String,
    #[serde(default)]
    pub role: Role,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined_at: Option<Time>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChannelItem {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creator: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PostItem {
    /// What it is called elsewhere.
    pub id: String,
    pub channel: String,
    pub body: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mentions: Vec<String>,
    /// What the post that it answers is called elsewhere: an earlier one of the same channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CursorItem {
    pub agent: String,
    pub channel: String,
    /// It has read what was posted until then.
    pub read_until: Time,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageItem {
    /// What it is called elsewhere.
    pub id: String,
    /// Whose inbox it is in.
    pub agent: String,
    pub content: ContentItem,
    #[serde(default)]
    pub status: Dealt,
    /// What was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// The task that it was delegated to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}

/// What was sent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ContentItem {
    pub text: String,
    /// `slack`, `github`, `email`, `api`, …
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matched: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<serde_json::Value>,
}

impl From<ContentItem> for Content {
    fn from(item: ContentItem) -> Self {
        let ContentItem { text, source, channel, thread, sender, matched, data } = item;
        Content { source, text, channel, thread, sender, matched, data, ..Content::default() }
    }
}

/// What a message can be when it comes. Whoever was at it elsewhere holds nothing here: it is unread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dealt {
    #[default]
    Unread,
    Read,
    Responded,
    Delegated,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Imported {
    pub agents: Taken,
    pub channels: Taken,
    pub posts: Taken,
    /// `AGENT/CHANNEL` each.
    pub cursors: Taken,
    pub messages: Taken,
}

/// What became of one kind of thing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Taken {
    /// What is new.
    pub imported: Vec<String>,
    /// What was there already, and was left alone.
    pub existing: Vec<Existing>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ExistingItem")]
pub struct Existing {
    pub id: String,
    /// How it is not as it is elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<String>,
}

impl Taken {
    fn there(&mut self, id: &str, differs: Vec<String>) {
        self.existing.push(Existing { id: id.into(), differs });
    }
}

/// `role: lead here, worker there`, if that is so.
fn differs(what: &str, here: &str, there: &str) -> Option<String> {
    let shown = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
    (here != there).then(|| format!("{what}: {} here, {} there", shown(here), shown(there)))
}

impl Op for Import {
    const NAME: &'static str = "admin/import";
    /// It writes a past that nobody here was part of.
    const ACCESS: Access = Access::Admin;
    type Reply = Imported;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Imported> {
        self.check()?;
        Ok(Imported {
            agents: self.agents(tx).await?,
            channels: self.channels(tx).await?,
            posts: self.posts(tx).await?,
            cursors: self.cursors(tx).await?,
            messages: self.messages(tx).await?,
        })
    }
}

impl Import {
    /// By this a thing is known again.
    fn key(&self, id: &str) -> String {
        format!("{}:{id}", self.source)
    }

    fn check(&self) -> Result<()> {
        check::plain_name("source", &self.source)?;
        let counts = [
            ("agents", self.agents.len()),
            ("channels", self.channels.len()),
            ("posts", self.posts.len()),
            ("cursors", self.cursors.len()),
            ("messages", self.messages.len()),
        ];
        for (name, count) in counts {
            check::range(name, count as i64, 0, PLAN_MAX as i64)?;
        }
        for (i, item) in self.agents.iter().enumerate() {
            item.check(&format!("agents[{i}]."))?;
        }
        for (i, item) in self.channels.iter().enumerate() {
            item.check(&format!("channels[{i}]."))?;
        }
        for (i, item) in self.posts.iter().enumerate() {
            check::line(&format!("posts[{i}].id"), &self.key(&item.id), NAME_MAX)?;
            item.check(&format!("posts[{i}]."))?;
        }
        for (i, item) in self.cursors.iter().enumerate() {
            check::plain_name(&format!("cursors[{i}].agent"), &item.agent)?;
            check::plain_name(&format!("cursors[{i}].channel"), &item.channel)?;
        }
        for (i, item) in self.messages.iter().enumerate() {
            check::line(&format!("messages[{i}].id"), &self.key(&item.id), NAME_MAX)?;
            item.check(&format!("messages[{i}]."))?;
        }
        Ok(())
    }
}
