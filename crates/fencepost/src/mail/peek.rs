use super::{
    Message,
    record::{Record, unheld},
    view::full,
};
use crate::{
    error::Result,
    names::check,
    op::{Access, Op, erased},
    params,
    tx::Tx,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// See which messages of a mailbox would be claimed next, without claiming them.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Peek {
    pub mailbox: String,
    /// At most this many (1 unless said, at most 100).
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
    const READS: bool = true;
    type Reply = Peeked;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Peeked> {
        let count = self.count.unwrap_or(1);
        check::path_name("mailbox", &self.mailbox)?;
        check::range("count", count, 1, 100)?;
        let sql = unheld!(
            "where message.ready = 1 and message.mailbox = ?1 order by message.priority desc, message.id limit ?2"
        );
        let found = Record::that_fit(Record::read_all(tx.query(sql, params![&self.mailbox, count]).await?)?);
        if found.is_empty() {
            return Ok(Peeked { messages: Vec::new() });
        }
        Ok(Peeked { messages: full(tx, found, vec![]).await?.1 })
    }
}
