//! A message as callers see it.

use super::{Record, Status};
use crate::{
    clock::Time,
    db::{Answers, Batch, Tx, by_keys},
    error::{Error, Result},
    json::Json,
    ops::claim::{self, Checkpoint},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// A message. The long fields (`payload` to `outputs`) are filled in by claim, take, peek and show.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Message {
    pub id: i64,
    pub mailbox: String,
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    pub status: Status,
    /// Result of a finished message: the outcome given on completion, `taken` or `discarded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// 0 to 100, higher first.
    pub priority: i64,
    /// Lane of a message in a strict mailbox: the messages of one lane are handed out in order, one at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Earliest time at which it can be claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_until: Option<Time>,
    pub attempts: i64,
    pub max_attempts: i64,
    /// Reason why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// The current claim, while a run holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<claim::Claim>,
    /// Its last holder's lease has expired, and expiry has not written that yet. The message is shown as expiry will
    /// write it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lapsed: bool,
    pub created_at: Time,
    pub updated_at: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// The JSON that was pushed. Completing the message clears it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Json>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The latest checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// The outputs given on completion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Json>,
}

impl Default for Message {
    fn default() -> Self {
        Self {
            id: 0,
            mailbox: String::new(),
            kind: None,
            status: Status::Pending,
            outcome: None,
            priority: crate::ops::task::PRIORITY,
            lane: None,
            idempotency_key: None,
            delayed_until: None,
            attempts: 0,
            max_attempts: super::MAX_ATTEMPTS,
            failure_reason: None,
            claim: None,
            lapsed: false,
            created_at: Time(0),
            updated_at: Time(0),
            finished_at: None,
            payload: None,
            headers: BTreeMap::new(),
            checkpoint: None,
            outputs: Vec::new(),
        }
    }
}

/// Messages with their long fields.
pub(crate) async fn full(tx: &mut Tx<'_>, messages: Vec<Record>) -> Result<Vec<Message>> {
    Ok(full_after(tx, Batch::new(), messages).await?.1)
}

/// As [`full`], after the statements of a batch in the same round trip. Also returns the batch's results.
pub(crate) async fn full_after(
    tx: &mut Tx<'_>,
    mut batch: Batch,
    messages: Vec<Record>,
) -> Result<(Answers, Vec<Message>)> {
    let keys: Vec<i64> = messages.iter().map(|message| message.id).collect();
    let docs = batch.add(by_keys!(
        read,
        keys.as_slice(),
        "select message, payload, headers, checkpoint from message_doc where message",
        ""
    ));
    let mut answers = tx.send(batch).await?;
    let at: HashMap<i64, usize> = keys.iter().enumerate().map(|(i, &id)| (id, i)).collect();
    let mut views: Vec<Message> = messages.into_iter().map(|message| message.view(tx.now)).collect();
    for mut row in answers.take(docs).rows {
        let view = &mut views[at[&row.get("message")?]];
        view.payload = row.take::<Option<String>>("payload")?.map(Json::stored).transpose()?;
        if let Some(headers) = row.take::<Option<String>>("headers")? {
            view.headers = serde_json::from_str(&headers).map_err(Error::internal)?;
        }
        if let Some(checkpoint) = row.take::<Option<String>>("checkpoint")? {
            view.checkpoint = Some(serde_json::from_str(&checkpoint).map_err(Error::internal)?);
        }
    }
    Ok((answers, views))
}
