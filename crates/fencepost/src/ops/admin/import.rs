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
    ops::{
        agent::{PauseState, Role},
        inbox::Content,
        mail::Replay,
        task::import::CheckpointItem,
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The highest floor that an import may set: above it, some JSON readers can no longer hold the fences exactly. A
/// restore sets the floor to the time in microseconds, which stays below this for centuries.
const FLOOR_MAX: i64 = 1 << 53;

/// Import agents, channels, inboxes, mailboxes and routes from another system, in one transaction: all or none. An item
/// that already exists, by its name, key, or source and id, stays unchanged, so repeating an import changes nothing.
/// Tasks have their own import. `admin/export` writes items in this form.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Import {
    /// The system that the items come from, such as `agent-swarm`.
    pub source: String,
    #[serde(default)]
    pub agents: Vec<AgentItem>,
    #[serde(default)]
    pub channels: Vec<ChannelItem>,
    /// In order: their new numbers follow it.
    #[serde(default)]
    pub posts: Vec<PostItem>,
    /// The agents' cursors. A cursor moves only past imported posts.
    #[serde(default)]
    pub cursors: Vec<CursorItem>,
    /// Messages of inboxes, in order.
    #[serde(default)]
    pub messages: Vec<MessageItem>,
    /// In the order in which they are tried; they come after the existing routes.
    #[serde(default)]
    pub routes: Vec<RouteItem>,
    #[serde(default)]
    pub mailboxes: Vec<MailboxItem>,
    /// Messages of any mailbox, in order.
    #[serde(default)]
    pub mail: Vec<MailItem>,
    #[serde(default)]
    pub boards: Vec<BoardItem>,
    /// Every new fence is above this, so that a claim of the other system is never valid here.
    #[serde(default)]
    pub floor: Option<i64>,
    /// Report the result, but change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// An agent of another system. Its assigned and offered tasks wait for its first poll here, for up to 30 days.
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
    /// Delay from going offline until tasks offered or assigned to it go back to the pool (default 30 minutes).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strand_ms: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined_at: Option<Time>,
    /// The time at which it left, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_at: Option<Time>,
    /// Its polls get no trigger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<PauseState>,
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
    /// Its id in the other system.
    pub id: String,
    pub channel: String,
    pub body: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mentions: Vec<String>,
    /// The other system's id of the post that it answers: an earlier post of the same channel.
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
    /// The agent has read all posts up to this time.
    pub read_until: Time,
    /// The other system's id of the last post that it has read. If that post was imported, `read_until` is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_to: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageItem {
    /// Its id in the other system.
    pub id: String,
    /// The agent that owns the inbox.
    pub agent: String,
    pub content: ContentItem,
    #[serde(default)]
    pub status: Dealt,
    /// The answer.
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

/// The content of a message.
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

/// The status of an imported message. A message that was being processed elsewhere is imported as unread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dealt {
    #[default]
    Unread,
    Read,
    Responded,
    Delegated,
}

/// A rule for outside messages, and the agent that gets those that match.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteItem {
    /// `slack`, `github`, or another source.
    pub source: String,
    /// The agent that owns the inbox.
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
    /// Also match messages from programs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bots: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
}

/// A mailbox and its settings. Fields that are left out have their defaults.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MailboxItem {
    pub name: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// Reason for the pause, if the mailbox is paused.
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

/// A message of a mailbox. It gets a new number; the order is kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MailItem {
    /// Its idempotency key in the mailbox: the key of its push, or its id in the other system.
    pub key: String,
    pub mailbox: String,
    /// The pushed JSON as text, byte for byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// Its type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default)]
    pub status: MailState,
    /// Result of a finished message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// 0 to 100, higher first (default 50).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Lane of a message in a strict mailbox: the messages of one lane are handed out in order, one at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Number of attempts so far.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    /// Earliest time at which it can be claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_until: Option<Time>,
    /// Reason why it, or its last attempt, failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointItem>,
    /// The outputs given on completion: JSON as text, byte for byte.
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

/// The status of an imported mailbox message. A message that was claimed elsewhere is imported as pending.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MailState {
    #[default]
    Pending,
    Processed,
    Failed,
    Held,
}

/// A board and its counter. A number that was used is not used again, even if its task was removed.
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
    /// Named `AGENT/CHANNEL`.
    pub cursors: Taken,
    pub messages: Taken,
    /// Named by the text of the rule.
    pub routes: Taken,
    pub mailboxes: Taken,
    /// Named `MAILBOX KEY`.
    pub mail: Taken,
    pub boards: Taken,
}

/// The result of the import for one kind of item.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Taken {
    /// New items.
    pub imported: Vec<String>,
    /// Items that already existed and stay unchanged.
    pub existing: Vec<Existing>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ExistingItem")]
pub struct Existing {
    pub id: String,
    /// Differences between the item here and the imported one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<String>,
}

impl Taken {
    fn there(&mut self, id: &str, differs: Vec<String>) {
        self.existing.push(Existing { id: id.into(), differs });
    }
}

/// A difference as text, such as `role: lead here, worker there`, if there is one.
fn differs(field: &str, here: &str, there: &str) -> Option<String> {
    let shown = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
    (here != there).then(|| format!("{field}: {} here, {} there", shown(here), shown(there)))
}

impl Op for Import {
    const NAME: &'static str = "admin/import";
    /// It writes history that did not happen in this fleet.
    const ACCESS: Access = Access::Admin;
    // Never: a repeat is refused or changes nothing, but its reply does not say what the first call imported.
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
    /// The idempotency key of an imported item.
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
