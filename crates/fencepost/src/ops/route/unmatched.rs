use super::UNMATCHED;
use crate::{
    caller::Access,
    clock::Time,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
    json::Json,
    limits::check,
    ops::{inbox::Content, mail},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// List outside messages that match no rule, oldest first, a page at a time.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unmatched {
    /// Only messages after this id: the last one of the previous page.
    #[serde(default)]
    pub after: Option<i64>,
    /// At most this many (default 100, at most 1000).
    #[serde(default)]
    pub limit: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Kept {
    pub messages: Vec<Stray>,
    /// There is another page.
    pub more: bool,
}

/// A message that matches no rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stray {
    pub id: i64,
    /// The delivered content; missing if the message was pushed to this mailbox directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    pub created_at: Time,
}

impl Op for Unmatched {
    const NAME: &'static str = "route/unmatched";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Kept;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Kept> {
        let limit = self.limit.unwrap_or(100);
        check::range("limit", limit, 1, 1000)?;
        let after = self.after.unwrap_or(0);
        let overdue = mail::overdue(tx, Some(UNMATCHED)).await?;
        let rows = tx
            .query(
                mail::record::columns!(
                    "where message.mailbox = ?1 and message.id > ?2 and message.finished_at is null
                     and message.id not in (select cast(value ->> 'k' as bigint) from json_each(?4))
                     order by message.id limit ?3"
                ),
                params![UNMATCHED, after, limit + 1, overdue.keys()],
            )
            .await?;
        let fits = |message: &mail::Record| message.id > after && !message.phase.is_finished();
        let (found, more) = overdue.page(mail::Record::read_all(rows)?, fits, limit);
        let listed = found.len();
        let found = mail::Record::that_fit(found);
        let more = more || found.len() < listed;
        if found.is_empty() {
            return Ok(Kept { messages: Vec::new(), more });
        }
        let messages = mail::view::full(tx, found).await?.into_iter().map(|message| Stray {
            id: message.id,
            content: message.payload.as_ref().and_then(|payload: &Json| payload.read().ok()),
            created_at: message.created_at,
        });
        Ok(Kept { messages: messages.collect(), more })
    }
}
