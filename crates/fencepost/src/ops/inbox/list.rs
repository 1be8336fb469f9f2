use super::{Item, Status, mailbox};
use crate::{
    caller::Access,
    db::{Batch, Tx, by_keys},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    json::Json,
    limits::check,
    ops::mail,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// List an agent's inbox, oldest first, a page at a time: the open messages, or all of them.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    pub agent: String,
    /// Also finished messages.
    #[serde(default)]
    pub all: bool,
    /// Only messages with this status.
    #[serde(default)]
    pub status: Option<Status>,
    /// Only messages after this id: the last one of the previous page.
    #[serde(default)]
    pub after: Option<i64>,
    /// At most this many (default 100, at most 1000).
    #[serde(default)]
    pub limit: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Items {
    pub items: Vec<Item>,
    /// There is another page.
    pub more: bool,
}

impl Op for List {
    const NAME: &'static str = "inbox/list";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = r#"{"agent":"codex-1"}"#;
    const READS: bool = true;
    type Reply = Items;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Items> {
        check::plain_name("agent", &self.agent)?;
        let limit = self.limit.unwrap_or(100);
        check::range("limit", limit, 1, 1000)?;
        let (mailbox, after) = (mailbox(&self.agent), self.after.unwrap_or(0));
        let overdue = mail::overdue(tx, Some(&mailbox)).await?;
        // An inbox status stands for a message's status and outcome.
        let rows = tx
            .query(
                mail::record::columns!(
                    "where message.mailbox = ?1 and message.id > ?2
                     and message.id not in (select cast(value ->> 'k' as bigint) from json_each(?6))
                     and (?4 = 1 or message.finished_at is null)
                     and (cast(?5 as text) is null or ?5 = case message.status
                       when 'pending' then 'unread' when 'held' then 'unread'
                       when 'processed' then case message.outcome
                         when 'responded' then 'responded' when 'delegated' then 'delegated' else 'read' end
                       else message.status end)
                     order by message.id limit ?3"
                ),
                params![
                    &mailbox,
                    after,
                    limit + 1,
                    self.all || self.status.is_some(),
                    self.status.map(Status::as_str),
                    overdue.keys(),
                ],
            )
            .await?;
        let fits = |message: &mail::Record| {
            let shown = Status::of(message.status(), message.outcome.as_deref());
            message.id > after
                && message.mailbox == mailbox
                && self.status.map_or(self.all || !message.phase.is_finished(), |status| status == shown)
        };
        let (found, more) = overdue.page(mail::Record::read_all(rows)?, fits, limit);
        if found.is_empty() {
            return Ok(Items { items: Vec::new(), more });
        }
        let keys = found.iter().map(|message| message.id).collect::<Vec<_>>();
        let mut batch = Batch::new();
        let responses = batch.add(by_keys!(
            read,
            keys.as_slice(),
            "select message, output from message_output where n = 0 and message",
            ""
        ));
        let (mut answers, mut views) = mail::view::full_after(tx, batch, found).await?;
        for mut row in answers.take(responses).rows {
            let message: i64 = row.get("message")?;
            let output = Json::stored(row.take("output")?)?;
            views
                .iter_mut()
                .filter(|view| view.id == message)
                .for_each(|view| view.outputs = vec![output.clone()]);
        }
        Ok(Items { items: views.into_iter().map(Item::of).collect(), more })
    }
}
