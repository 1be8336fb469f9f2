//! Mailboxes: durable queues. A message is claimed, processed and completed. Its outputs are stored in the transaction
//! that completes it.
//!
//! An op loads the messages' `Record`s under row locks, applies a pure rule to each, and saves the set with one update.
//! The update checks the fences and, where a claim is used or made, that its run is alive.
//!
//! A strict mailbox keeps order within each lane: only one unfinished message of a lane can be ready. The column
//! `behind` is 0 for that message and 1 for the others. A push sets it, and finishing a message clears it for the next
//! one, both under the lane's lock. So a claim needs no special search, and skipping locked rows keeps the order.

mod lane;
mod now;
mod phase;
pub(crate) mod record;
mod state;
pub(crate) mod view;

use crate::{
    clock::Millis,
    db::{Row, Stmt, Tx, set},
    engine::op::verbs,
    error::{Code, Error, Result},
    ids::Token,
    log::Event,
    params,
    topic::Topic,
};
pub(crate) use now::{now, overdue};
pub(crate) use phase::Phase;
pub(crate) use record::{Record, load};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use state::State;
use std::collections::{BTreeMap, BTreeSet, HashMap};
pub use view::Message;

verbs![
    push::Push,
    push_many::PushMany,
    claim::Claim,
    take::Take,
    checkpoint::SaveCheckpoint,
    done::Done,
    done_many::DoneMany,
    fail::Fail,
    release::Release,
    reset::Reset,
    list::List,
    show::Show,
    peek::Peek,
    redrive::Redrive,
    discard::Discard,
    pause::Pause,
    resume::Resume,
    configure::Configure,
    stats::Stats,
];
pub(crate) mod claimable;
pub(crate) mod lapse;
pub(crate) mod prune;

/// Default lease of a run that claims messages.
pub const TTL: Millis = Millis::minutes(5);
pub const MAX_ATTEMPTS: i64 = 3;
/// Default backoff after the first failure; it doubles with each further failure.
pub const BACKOFF: Millis = Millis::seconds(10);
/// The backoff grows to this at most, or to the mailbox's own first backoff if that is longer.
const BACKOFF_MAX: Millis = Millis::minutes(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Waiting to be claimed.
    Pending,
    /// Held by a run that works on it.
    Processing,
    /// Completed; see `outcome`.
    Processed,
    /// No attempt is left, or it was given up; see `failure_reason`.
    Failed,
    /// Its holder was lost. It waits for a person to redrive or discard it.
    Held,
}

impl Status {
    pub const ALL: [Status; 5] =
        [Status::Pending, Status::Processing, Status::Processed, Status::Failed, Status::Held];
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Processing => "processing",
            Status::Processed => "processed",
            Status::Failed => "failed",
            Status::Held => "held",
        }
    }
    fn read(text: &str) -> Result<Self> {
        let status = Status::ALL.into_iter().find(|status| status.as_str() == text);
        status.ok_or_else(|| Error::internal("a message has a status that this fence does not know"))
    }
    pub fn is_finished(self) -> bool {
        matches!(self, Status::Processed | Status::Failed)
    }
}

/// The treatment of a message whose holder was lost while processing it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Replay {
    /// Hand it out again while attempts are left.
    #[default]
    Retry,
    /// Hold it until a person redrives or discards it.
    Hold,
    /// Fail it with outcome `discarded`.
    Discard,
}

impl Replay {
    const ALL: [Replay; 3] = [Replay::Retry, Replay::Hold, Replay::Discard];
    pub(crate) fn read(text: &str) -> Option<Self> {
        Replay::ALL.into_iter().find(|replay| replay.as_str() == text)
    }
    pub fn as_str(self) -> &'static str {
        match self {
            Replay::Retry => "retry",
            Replay::Hold => "hold",
            Replay::Discard => "discard",
        }
    }
}

/// A mailbox's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Settings {
    /// Hand out the messages of each lane in order, one at a time, also through retries.
    pub strict: bool,
    /// Default lease of a run that claims from this mailbox.
    pub ttl_ms: Millis,
    /// Claims of a message before it fails.
    pub max_attempts: i64,
    /// Backoff after the first failure; it doubles with each further failure.
    pub backoff_ms: Millis,
    pub replay: Replay,
    /// Time to keep a finished message.
    pub retain_ms: Millis,
    /// Number of processed messages to keep, the latest ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_count: Option<i64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            strict: false,
            ttl_ms: TTL,
            max_attempts: MAX_ATTEMPTS,
            backoff_ms: BACKOFF,
            replay: Replay::default(),
            retain_ms: crate::ops::event::prune::HISTORY,
            retain_count: None,
        }
    }
}

impl Settings {
    /// The backoff after this many attempts.
    fn backoff(&self, attempts: i64) -> Millis {
        let doublings = u32::try_from((attempts - 1).clamp(0, 20)).unwrap_or(0);
        let pause = self.backoff_ms.0.saturating_mul(1 << doublings);
        Millis(pause.min(BACKOFF_MAX.0.max(self.backoff_ms.0)))
    }
}

/// A mailbox's row.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mailbox {
    pub settings: Settings,
    /// Reason for the pause, if the mailbox is paused.
    pub paused: Option<String>,
}

impl Mailbox {
    pub(crate) fn read(row: &Row) -> Result<Self> {
        let default = Settings::default();
        let replay: Option<String> = row.get("replay")?;
        let replay = replay.and_then(|text| Replay::read(&text));
        let span = |name, default| Ok::<_, Error>(row.get::<Option<Millis>>(name)?.unwrap_or(default));
        Ok(Self {
            settings: Settings {
                strict: row.get("in_order")?,
                ttl_ms: span("ttl_ms", default.ttl_ms)?,
                max_attempts: row.get::<Option<i64>>("max_attempts")?.unwrap_or(default.max_attempts),
                backoff_ms: span("backoff_ms", default.backoff_ms)?,
                replay: replay.unwrap_or_default(),
                retain_ms: span("retain_ms", default.retain_ms)?,
                retain_count: row.get("retain_count")?,
            },
            paused: row.get("paused")?,
        })
    }
}

macro_rules! mailboxes {
    ($rest:literal) => {
        concat!(
            "select name, in_order, paused, ttl_ms, max_attempts, backoff_ms, replay, retain_ms, retain_count
             from mailbox ",
            $rest
        )
    };
}
pub(crate) use mailboxes;

/// The rows of these mailboxes. A mailbox that does not exist yet has no row.
pub(crate) fn rows_of<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<Stmt> {
    let names: BTreeSet<&str> = names.into_iter().collect();
    if let (1, Some(name)) = (names.len(), names.first()) {
        return Ok(Stmt::read(mailboxes!("where name = ?1"), params![*name]));
    }
    let names = set(names.into_iter().map(|name| serde_json::json!({ "name": name })))?;
    Ok(Stmt::read(mailboxes!("where name in (select value ->> 'name' from json_each(?1))"), params![names]))
}

pub(crate) fn by_name(rows: &[Row]) -> Result<HashMap<String, Mailbox>> {
    rows.iter().map(|row| Ok((row.get("name")?, Mailbox::read(row)?))).collect()
}

/// The settings of these messages' mailboxes, by name.
async fn settings_of(tx: &mut Tx<'_>, messages: &[Record]) -> Result<HashMap<String, Settings>> {
    let rows = rows_of(messages.iter().map(|message| message.mailbox.as_str()))?;
    let found = by_name(&tx.one(rows).await?.rows)?;
    Ok(found.into_iter().map(|(name, mailbox)| (name, mailbox.settings)).collect())
}

/// Reply of a verb: the message after the change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    pub message: Message,
}

pub(crate) fn not_found(id: i64) -> Error {
    Error::new(Code::NotFound, format!("there is no message {id}"))
        .hint("fence mail list MAILBOX lists its messages; old finished messages are removed")
}

/// Refuses a mailbox that does not exist. (A push creates it, and a claim may wait for its first message.)
async fn require(tx: &mut Tx<'_>, mailbox: &str) -> Result<()> {
    if !tx.query("select 1 as there from mailbox where name = ?1", params![mailbox]).await?.is_empty() {
        return Ok(());
    }
    Err(Error::new(Code::NotFound, format!("there is no mailbox `{mailbox}`"))
        .hint("fence mail lists the mailboxes; fence mail configure creates one"))
}

/// Parses a token that must name a message; also returns the message's id.
fn message_token(token: &str) -> Result<(Token, i64)> {
    let token = Token::check(token)?;
    match claimable::message(&token.resource) {
        Some(id) => Ok((token, id)),
        None => Err(Error::new(Code::Invalid, format!("`{}` is not a message", token.resource))
            .with("field", "token")),
    }
}

/// Makes one batch of messages ready whose delay is over. Writes one event per mailbox.
pub(crate) async fn end_delays(tx: &mut Tx<'_>) -> Result<u64> {
    let rows = tx
        .execute_returning(
            "update message set delayed_until = null where id in (
               select id from message where delayed_until <= ?1 order by delayed_until limit ?2
               /*pg for update skip locked*/)
             returning mailbox",
            params![tx.now, crate::lease::expiry::ITEMS],
        )
        .await?;
    let mut due: BTreeMap<String, u64> = BTreeMap::new();
    for row in &rows {
        *due.entry(row.get("mailbox")?).or_default() += 1;
    }
    let events = due.iter().map(|(mailbox, messages)| Event {
        topic: Some(Topic::mail(mailbox)),
        details: Some(serde_json::json!({ "messages": messages })),
        ..Event::new("mailbox.due", format!("mailbox/{mailbox}"))
    });
    let events: Vec<_> = events.collect();
    if !events.is_empty() {
        tx.one(Event::insert_many(tx, events)?).await?;
    }
    Ok(rows.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_ten_minutes() {
        let every = |base, attempts: i64| {
            Settings { backoff_ms: Millis::seconds(base), ..Settings::default() }.backoff(attempts)
        };
        assert_eq!(every(10, 1), Millis::seconds(10));
        assert_eq!(every(10, 3), Millis::seconds(40));
        assert_eq!(every(10, 1000), Millis::minutes(10));
        assert_eq!(every(3600, 5), Millis::minutes(60));
        assert_eq!(every(0, 5), Millis(0));
    }
}
