//! Outboxes: answers that wait to be sent to the source of their message. An outbox is a mailbox (`outbox/SOURCE`).

use super::{Item, send};
use crate::{
    db::Tx,
    error::Result,
    ids::Token,
    json::Json,
    limits::{PATH, PAYLOAD_MAX, check, name_problem},
    ops::mail::{self, push_many},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The payload of a message in an outbox.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outgoing {
    /// The answer.
    pub text: String,
    /// The number of the answered message, and the agent that it was sent to.
    pub message: i64,
    pub agent: String,
    /// The same as in the answered message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
}

/// The sources of messages that no outside program sent: `inbox/send` without a source, and a push into the mailbox.
/// Nobody would take their answers from an outbox.
const NO_SOURCE: [&str; 2] = ["api", "mail"];

/// Whether the message was already answered or finished in another way. (The caller refuses what is no message.)
pub(super) async fn is_handled(tx: &mut Tx<'_>, which: &str) -> Result<bool> {
    let number = || which.parse::<i64>().ok();
    let of_token = || mail::claimable::message(&Token::check(which).ok()?.resource);
    let Some(id) = number().or_else(of_token) else { return Ok(false) };
    let found = mail::record::load_locked(tx, &[id]).await?.remove(&id);
    Ok(found.is_some_and(|message| message.phase.is_finished()))
}

/// Queues the answer to a message that came from a source.
pub(super) async fn queue(tx: &mut Tx<'_>, item: &Item, text: String) -> Result<()> {
    let content = item.content.clone().filter(|_| !item.agent.is_empty());
    let Some(content) = content.filter(|content| !NO_SOURCE.contains(&content.source.as_str())) else {
        return Ok(());
    };
    let mailbox = format!("outbox/{}", content.source);
    // A source's name may be as long as a mailbox's.
    if name_problem(&mailbox, PATH).is_some() {
        return Ok(());
    }
    let outgoing = Outgoing {
        text,
        message: item.id,
        agent: item.agent.clone(),
        channel: content.channel,
        thread: content.thread,
        sender: content.sender,
        repository: content.repository,
        event: content.event,
    };
    let payload = Json::of(&outgoing)?;
    check::text("text", payload.text(), PAYLOAD_MAX)?;
    let kind = Some("response".to_owned());
    let item = push_many::Item { mailbox, payload: Some(payload), kind, ..push_many::Item::default() };
    send::put(tx, item).await.map(drop)
}
