use super::{Item, mailbox};
use crate::{
    error::Result,
    json::Json,
    mail,
    names::check,
    op::{Access, Op},
    params,
    tx::{Tx, by_keys},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// List an agent's inbox, oldest first, a page at a time: what is not dealt with yet, or all of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    pub agent: String,
    /// Also what was dealt with.
    #[serde(default)]
    pub all: bool,
    /// Only what comes after this one: the last of the page before.
    #[serde(default)]
    pub after: Option<i64>,
    /// At most this many (100 unless said, at most 1000).
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
    const READS: bool = true;
    type Reply = Items;

    async fn run(self, tx: &mut Tx<'_>) -> Result<Items> {
        check::plain_name("agent", &self.agent)?;
        let limit = self.limit.unwrap_or(100);
        check::range("limit", limit, 1, 1000)?;
        let rows = tx
            .query(
                mail::record::columns!(
                    "where message.mailbox = ?1 and message.id > ?2 and (?4 = 1 or message.finished_at is null)
                     order by message.id limit ?3"
                ),
                params![mailbox(&self.agent), self.after.unwrap_or(0), limit + 1, self.all],
            )
            .await?;
        let more = rows.len() as i64 > limit;
        let mut found = mail::Record::read_all(rows)?;
        found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        if found.is_empty() {
            return Ok(Items { items: Vec::new(), more });
        }
        let ids: Vec<i64> = found.iter().map(|message| message.id).collect();
        let answers = by_keys!(
            ids.as_slice(),
            "select message, output from message_output where n = 0 and message",
            "order by message"
        );
        let (answers, mut views) = mail::view::full(tx, found, vec![answers]).await?;
        for mut row in answers.into_iter().flat_map(|answer| answer.rows) {
            let id: i64 = row.get("message")?;
            if let Some(view) = views.iter_mut().find(|view| view.id == id) {
                view.outputs.push(Json::stored(row.take("output")?)?);
            }
        }
        Ok(Items { items: views.into_iter().map(Item::of).collect(), more })
    }
}
