use super::{Delivered, ITEM, Outcome, UNMATCHED, send};
use crate::{
    caller::Access,
    db::{Stmt, Tx, set},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Error, Result},
    limits::{NAME_MAX, check},
    ops::{
        inbox::{self, Content},
        mail,
    },
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Deliver a message from outside. It is dropped if it was seen before. Otherwise it goes to the inbox of the agent
/// whose rule matches or, if none does, to the unmatched messages.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Deliver {
    /// `slack`, `github`, `email`, …
    pub source: String,
    /// The provider's id of this delivery. A second delivery with the same id is dropped.
    pub delivery: String,
    pub text: String,
    /// A digest of the content that the provider signed. The same digest under another id is dropped, too.
    #[serde(default)]
    pub digest: Option<String>,
    /// The subject of the delivery, such as a post. An agent gets each item once, even if several deliveries report it.
    #[serde(default)]
    pub item: Option<String>,
    /// `message`, `issues.opened`, …
    #[serde(default)]
    pub event: Option<String>,
    #[serde(default)]
    pub channel: Option<String>,
    #[serde(default)]
    pub thread: Option<String>,
    /// The sender; rules match it as `user`.
    #[serde(default)]
    pub sender: Option<String>,
    #[serde(default)]
    pub repository: Option<String>,
    /// The sender is a program.
    #[serde(default)]
    pub bot: bool,
    /// Other data from the source.
    #[serde(default)]
    pub data: Option<serde_json::Value>,
    /// Request id: with it a client retries a lost reply by itself, and learns that the message was delivered.
    #[serde(default)]
    pub request: Option<String>,
}

impl Op for Deliver {
    const NAME: &'static str = "route/deliver";
    const ACCESS: Access = Access::Admin;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str =
        r#"{"source":"slack","delivery":"Ev0PV52K21","text":"the build of main is red"}"#;
    refuses![AlreadyFinished];
    type Reply = Delivered;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Delivered> {
        check::request(self.request.as_deref())?;
        tx.opening.is_repeat("message.pushed", None)?;
        check::line("delivery", &self.delivery, NAME_MAX)?;
        for (field, value) in [("digest", &self.digest), ("item", &self.item)] {
            value.as_ref().map_or(Ok(()), |value| check::line(field, value, NAME_MAX))?;
        }
        let content = Content {
            source: self.source,
            text: self.text,
            event: self.event,
            channel: self.channel,
            thread: self.thread,
            sender: self.sender,
            sent_by: None,
            repository: self.repository,
            bot: self.bot,
            matched: None,
            data: self.data,
        };
        content.check("")?;
        // The prefix keeps digests apart from the provider's ids.
        let digest = self.digest.map(|digest| format!("digest:{digest}"));
        if let Some(repeated) = repeat_of(tx, &content.source, &self.delivery, digest.as_deref()).await? {
            return Ok(repeated);
        }
        let delivered = match send(tx, &content, self.item.clone()).await? {
            Some(routed) => routed,
            None => keep(tx, &content, self.item).await?,
        };
        tx.execute(
            "update delivery set message = ?3 where source = ?1 and (id = ?2 or id = ?4)",
            params![&content.source, &self.delivery, delivered.message, digest],
        )
        .await?;
        Ok(delivered)
    }
}

/// The result of the first delivery, if this one is a repeat. On PostgreSQL a concurrent delivery waits here for the
/// row of the first one.
async fn repeat_of(
    tx: &mut Tx<'_>,
    source: &str,
    delivery: &str,
    digest: Option<&str>,
) -> Result<Option<Delivered>> {
    let ids: Vec<&str> = [Some(delivery), digest].into_iter().flatten().collect();
    let rows = set(ids.iter().map(|id| json!({ "id": id })))?;
    let insert = Stmt::write(
        "insert into delivery(source, id, at)
         select ?1, value ->> 'id', cast(?2 as bigint) from json_each(?3) where true order by key
         on conflict (source, id) do nothing",
        params![source, tx.now, rows],
    );
    if tx.one(insert).await?.affected == ids.len() as u64 {
        return Ok(None);
    }
    let known = tx
        .query(
            "select message from delivery where source = ?1 and (id = ?2 or id = ?3) and message is not null
             order by case when id = ?2 then 0 else 1 end",
            params![source, delivery, digest],
        )
        .await?;
    let first: i64 = known.first().ok_or_else(pruned)?.get("message")?;
    // It was known by its id or by its digest. From now on it is known by both.
    let rows = tx
        .execute_returning(
            "update delivery set message = coalesce(message, ?4), repeats = repeats + case when id = ?2 then 1 else 0 end
             where source = ?1 and (id = ?2 or (id = ?3 and message is null)) returning id, repeats",
            params![source, delivery, digest, first],
        )
        .await?;
    let own = rows.iter().find(|row| row.get::<String>("id").is_ok_and(|id| id == delivery));
    let repeats = Some(own.ok_or_else(pruned)?.get("repeats")?);
    Ok(Some(Delivered { repeats, ..Delivered::new(Outcome::Repeated, first) }))
}

fn pruned() -> Error {
    Error::raced("a delivery was pruned at this moment")
}

/// Keeps an unmatched delivery. Its `item` is not its key: another delivery of the same item may match a rule.
async fn keep(tx: &mut Tx<'_>, content: &Content, item: Option<String>) -> Result<Delivered> {
    let push = mail::push_many::Item {
        headers: item.map(|item| (ITEM.to_owned(), item)).into_iter().collect(),
        ..inbox::send::push_item(UNMATCHED.into(), content)?
    };
    let (message, _) = inbox::send::put(tx, push).await?;
    Ok(Delivered::new(Outcome::Unmatched, message.id))
}
