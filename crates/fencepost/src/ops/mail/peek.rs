use super::{
    Message, overdue,
    record::{Record, unheld},
    view::full,
};
use crate::{
    caller::Access,
    db::{Batch, Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::check,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// Show the next messages of a mailbox without claiming them.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Peek {
    pub mailbox: String,
    /// At most this many (default 1, at most 100).
    #[serde(default)]
    pub count: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Peeked {
    pub messages: Vec<Message>,
}

impl Op for Peek {
    const NAME: &'static str = "mail/peek";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = r#"{"mailbox":"builds"}"#;
    const READS: bool = true;
    type Reply = Peeked;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Peeked> {
        let count = self.count.unwrap_or(1);
        check::path_name("mailbox", &self.mailbox)?;
        check::range("count", count, 1, 100)?;
        let overdue = overdue(tx, Some(&self.mailbox)).await?;
        let ready = unheld!(
            "where message.ready = 1 and message.mailbox = ?1 order by message.priority desc, message.id limit ?2"
        );
        let mut batch = Batch::from([Stmt::read(ready, params![&self.mailbox, count])]);
        if tx.opening.due.is_due(tx.now) {
            // Messages whose delay is over, but which expiry has not made ready yet.
            let woken = unheld!(
                "where message.ready = 0 and message.run is null and message.finished_at is null
                 and message.mailbox = ?1 and message.status = 'pending' and message.behind = 0
                 and message.delayed_until <= ?3
                 and message.id not in (select cast(value ->> 'k' as bigint) from json_each(?4))
                 order by message.priority desc, message.id limit ?2"
            );
            let params = params![&self.mailbox, count, tx.now, overdue.keys()];
            batch.add(Stmt::read(woken, params));
        }
        let rows = tx.send(batch).await?.into_rows().collect();
        let mut found = overdue.merge(Record::read_all(rows)?, |message| message.is_ready(tx.now));
        found.sort_by_key(|message| (Reverse(message.priority), message.id));
        found.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        if found.is_empty() {
            return Ok(Peeked { messages: Vec::new() });
        }
        let found = Record::that_fit(found);
        Ok(Peeked { messages: full(tx, found).await? })
    }
}
