use super::{
    Message, State, overdue,
    record::{Record, columns},
};
use crate::{
    caller::Access,
    db::{Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::check,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// List the messages of one mailbox or of all, oldest first, a page at a time.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    #[serde(default)]
    pub mailbox: Option<String>,
    /// Only messages in this state.
    #[serde(default)]
    pub status: Option<State>,
    /// Only messages after this id: the last one of the previous page.
    #[serde(default)]
    pub after: Option<i64>,
    /// At most this many (default 100, at most 1000).
    #[serde(default)]
    pub limit: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Messages {
    pub messages: Vec<Message>,
    /// There is another page.
    pub more: bool,
}

impl Op for List {
    const NAME: &'static str = "mail/list";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Messages;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Messages> {
        let limit = self.limit.unwrap_or(100);
        check::range("limit", limit, 1, 1000)?;
        self.mailbox.as_deref().map_or(Ok(()), |name| check::path_name("mailbox", name))?;
        let after = self.after.unwrap_or(0);
        let overdue = overdue(tx, self.mailbox.as_deref()).await?;
        macro_rules! page {
            ($status:literal $(, $now:expr)?) => {
                match &self.mailbox {
                    // A plain comparison, so that an index by mailbox can be used.
                    Some(mailbox) => Stmt::read(
                        columns!(concat!(
                            "where message.mailbox = ?1 and message.id > ?2
                             and message.id not in (select cast(value ->> 'k' as bigint) from json_each(?4))",
                            $status,
                            " order by message.id limit ?3"
                        )),
                        params![mailbox, after, limit + 1, overdue.keys() $(, $now)?],
                    ),
                    // The first parameter is unused; it keeps the numbers of the others.
                    None => Stmt::read(
                        columns!(concat!(
                            "where cast(?1 as text) is null and message.id > ?2
                             and message.id not in (select cast(value ->> 'k' as bigint) from json_each(?4))",
                            $status,
                            " order by message.id limit ?3"
                        )),
                        params![None::<&str>, after, limit + 1, overdue.keys() $(, $now)?],
                    ),
                }
            };
        }
        // Processing, held and failed messages have partial indexes: the statement must repeat the index predicate.
        let page = match self.status {
            None => page!(""),
            Some(State::Pending) => page!(
                " and message.status = 'pending' and (message.delayed_until is null or message.delayed_until <= ?5)",
                tx.now
            ),
            Some(State::Delayed) => {
                page!(" and message.status = 'pending' and message.delayed_until > ?5", tx.now)
            }
            Some(State::Processing) => page!(" and message.run is not null"),
            Some(State::Processed) => page!(" and message.status = 'processed'"),
            Some(State::Failed) => page!(" and message.status = 'failed'"),
            Some(State::Held) => page!(
                " and message.status = 'held' and message.ready = 0 and message.run is null
                 and message.finished_at is null"
            ),
        };
        let rows = tx.one(page).await?.rows;
        let fits = |message: &Record| {
            message.id > after
                && self.mailbox.as_ref().is_none_or(|mailbox| message.mailbox == *mailbox)
                && self.status.is_none_or(|status| message.state(tx.now) == status)
        };
        let (messages, more) = overdue.page(Record::read_all(rows)?, fits, limit);
        Ok(Messages { messages: messages.into_iter().map(|message| message.view(tx.now)).collect(), more })
    }
}
