mod agents;
mod cursors;
mod mail;
mod messages;
mod posts;
mod settings;

use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::{NAME_MAX, PLAN_MAX, check},
    ops::{agent::Role, inbox::Content, mail::Replay, task::import::CheckpointItem},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The highest floor that an import may set. Above it the fences of a long-lived fleet would no longer be numbers that
/// every JSON reader can hold; a restore sets it to the time in microseconds, which stays below for centuries.
const FLOOR_MAX: i64 = 1 << 53;

/// Bring agents, their channels, inboxes, mailboxes and routes along from elsewhere, as they are there, in one transaction:
/// all or none. What is there already, by its name, key, or source and id, is left alone, so importing again changes
/// nothing. Tasks have an import of their own. `admin/export` writes what this takes.
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
    /// Messages of inboxes, in their order.
    #[serde(default)]
    pub messages: Vec<MessageItem>,
    /// In the order in which they are tried; after those that are here.
    #[serde(default)]
    pub routes: Vec<RouteItem>,
    #[serde(default)]
    pub mailboxes: Vec<MailboxItem>,
    /// Messages of any mailbox, in their order.
    #[serde(default)]
    pub mail: Vec<MailItem>,
    #[serde(default)]
    pub boards: Vec<BoardItem>,
    /// Every fence from now on is above this, so that a claim made elsewhere is never taken for one made here.
    #[serde(default)]
    pub floor: Option<i64>,
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
    /// How long after it went silent what is offered or assigned to it goes back to the pool (30 minutes unless said).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strand_ms: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined_at: Option<Time>,
    /// It left then, and is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_at: Option<Time>,
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
    /// The last post that it has read, as it is called elsewhere. If that post is here, it decides, and not the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_to: Option<String>,
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

/// A rule for what comes from outside, and the agent that gets what fits it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteItem {
    /// `slack`, `github`, or whatever else delivers.
    pub source: String,
    /// Whose inbox.
    pub agent: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Also what programs say.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bots: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
}

/// A mailbox and how it works. Fields that are left out have their defaults.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MailboxItem {
    pub name: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// Why it is paused, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_ms: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_ms: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_count: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
}

/// A message of a mailbox. It gets a number of its own here; the order is kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MailItem {
    /// By this it is known again in its mailbox: the key that it was pushed under, or what it is called elsewhere.
    pub key: String,
    pub mailbox: String,
    /// The text of the JSON that was pushed, byte by byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// Its type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default)]
    pub status: MailState,
    /// How it was finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// 0 to 100, higher first (50 unless said).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// What order is kept by, in a strict mailbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// How often it was tried so far.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    /// It cannot be claimed before this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_until: Option<Time>,
    /// Why it failed, or its last attempt did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointItem>,
    /// What came of it: the text of its JSON, byte by byte.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// What a mailbox's message can be when it comes. A message that a run held elsewhere is pending: nobody holds it here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MailState {
    #[default]
    Pending,
    Processed,
    Failed,
    Held,
}

/// A board, and from where it counts on: a number that was used is not used again, also if its task is gone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BoardItem {
    pub name: String,
    /// The number of its next task.
    pub next: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Imported {
    pub agents: Taken,
    pub channels: Taken,
    pub posts: Taken,
    /// `AGENT/CHANNEL` each.
    pub cursors: Taken,
    pub messages: Taken,
    /// What each rule says.
    pub routes: Taken,
    pub mailboxes: Taken,
    /// `MAILBOX KEY` each.
    pub mail: Taken,
    pub boards: Taken,
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
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"source":"slack"}"#;
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
            routes: self.routes(tx).await?,
            mailboxes: self.mailboxes(tx).await?,
            mail: self.mail(tx).await?,
            // The counters and the floor come last in the lock order.
            boards: self.boards(tx).await?,
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
            ("routes", self.routes.len()),
            ("mailboxes", self.mailboxes.len()),
            ("mail", self.mail.len()),
            ("boards", self.boards.len()),
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
            let read_to = item.read_to.as_ref().map(|id| self.key(id));
            check::optional_text(&format!("cursors[{i}].read_to"), read_to.as_deref(), NAME_MAX)?;
        }
        for (i, item) in self.messages.iter().enumerate() {
            check::line(&format!("messages[{i}].id"), &self.key(&item.id), NAME_MAX)?;
            item.check(&format!("messages[{i}]."))?;
        }
        for (i, item) in self.routes.iter().enumerate() {
            item.check(&format!("routes[{i}]."))?;
        }
        for (i, item) in self.mailboxes.iter().enumerate() {
            item.check(&format!("mailboxes[{i}]."))?;
        }
        for (i, item) in self.mail.iter().enumerate() {
            item.check(&format!("mail[{i}]."))?;
        }
        for (i, item) in self.boards.iter().enumerate() {
            item.check(&format!("boards[{i}]."))?;
        }
        check::range("floor", self.floor.unwrap_or(0), 0, FLOOR_MAX)
    }
}
