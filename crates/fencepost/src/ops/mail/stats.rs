use super::{Mailbox, Record, Settings, Status, mailboxes, overdue, record::unheld};
use crate::{
    caller::Access,
    clock::Time,
    db::{Stmt, Tx, by_keys, set},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::check,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// Show mailboxes: the number of messages in each state, the age of the next message, and the settings.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stats {
    /// Only this mailbox.
    #[serde(default)]
    pub mailbox: Option<String>,
    /// Only mailboxes after this name: the last one of the previous page.
    #[serde(default)]
    pub after: Option<String>,
    /// At most this many (default 100, at most 1000).
    #[serde(default)]
    pub limit: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Mailboxes {
    pub mailboxes: Vec<Box>,
    /// There is another page.
    pub more: bool,
}

/// A mailbox with its message counts and settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Mailbox")]
pub struct Box {
    pub name: String,
    /// Reason for the pause, if the mailbox is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<String>,
    /// Messages that can be claimed now, unless the mailbox is paused.
    pub ready: i64,
    /// Messages that are pending, but delayed or behind another message of their lane.
    pub waiting: i64,
    pub processing: i64,
    pub held: i64,
    pub failed: i64,
    pub processed: i64,
    /// The time at which the next message was pushed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_at: Option<Time>,
    pub settings: Settings,
}

impl Op for Stats {
    const NAME: &'static str = "mail/stats";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Mailboxes;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Mailboxes> {
        let limit = self.limit.unwrap_or(100);
        check::range("limit", limit, 1, 1000)?;
        self.mailbox.as_deref().map_or(Ok(()), |name| check::path_name("mailbox", name))?;
        self.after.as_deref().map_or(Ok(()), |name| check::path_name("after", name))?;
        let mut mailboxes = of(tx, self.mailbox.as_deref(), self.after.as_deref(), limit + 1).await?;
        let more = mailboxes.len() as i64 > limit;
        mailboxes.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(Mailboxes { mailboxes, more })
    }
}

/// Each count reads its own index.
pub(super) async fn of(
    tx: &mut Tx<'_>,
    name: Option<&str>,
    after: Option<&str>,
    limit: i64,
) -> Result<Vec<Box>> {
    let page = Stmt::read(
        mailboxes!(
            "where (cast(?1 as text) is null or name = ?1) and (cast(?2 as text) is null or name > ?2)
             order by name limit ?3"
        ),
        params![name, after, limit],
    );
    let rows = tx.one(page).await?.rows;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        found.push((row.get::<String>("name")?, Mailbox::read(row)?));
    }
    let (overdue, due) = (overdue(tx, name).await?, tx.opening.due.is_due(tx.now));
    let names = set(found.iter().map(|(name, _)| serde_json::json!({ "name": name })))?;
    // The next expiry moves messages whose delay is over to the ready index. Until then they are counted here, but only
    // if a deadline has passed.
    let counts = tx
        .query(
            "select value ->> 'name' as name,
               (select count(*) from message where ready = 1 and mailbox = value ->> 'name') as ready,
               case when ?3 = 0 then 0 else (
                 select count(*) from message where ready = 0 and run is null and finished_at is null
                 and mailbox = value ->> 'name' and status = 'pending' and behind = 0 and delayed_until <= ?4
                 and id not in (select cast(value ->> 'k' as bigint) from json_each(?2))) end as woken,
               case when ?3 = 0 then null else (
                 select id from message where ready = 0 and run is null and finished_at is null
                 and mailbox = value ->> 'name' and status = 'pending' and behind = 0 and delayed_until <= ?4
                 and id not in (select cast(value ->> 'k' as bigint) from json_each(?2))
                 order by priority desc, id limit 1) end as first_woken,
               (select count(*) from message where ready = 0 and run is null and finished_at is null
                 and mailbox = value ->> 'name'
                 and id not in (select cast(value ->> 'k' as bigint) from json_each(?2))) as waiting,
               (select count(*) from message where ready = 0 and run is null and finished_at is null
                 and mailbox = value ->> 'name' and status = 'held') as held,
               (select count(*) from message where run is not null and mailbox = value ->> 'name'
                 and id not in (select cast(value ->> 'k' as bigint) from json_each(?2))) as processing,
               (select count(*) from message where status = 'failed' and mailbox = value ->> 'name') as failed,
               (select count(*) from message where finished_at is not null and mailbox = value ->> 'name') as finished,
               (select id from message where ready = 1 and mailbox = value ->> 'name'
                order by priority desc, id limit 1) as first
             from json_each(?1) order by key",
            params![names, overdue.keys(), due, tx.now],
        )
        .await?;
    let mut heads = Vec::new();
    for row in &counts {
        heads.extend([row.get::<Option<i64>>("first")?, row.get("first_woken")?].into_iter().flatten());
    }
    let mut heads = match heads.as_slice() {
        [] => Vec::new(),
        ids => Record::read_all(tx.one(by_keys!(read, ids, unheld!("where message.id"), "")).await?.rows)?,
    };
    heads.extend(overdue.iter().filter(|message| message.is_ready(tx.now)).cloned());
    heads.sort_by_key(|message| (Reverse(message.priority), message.id));
    let boxes = found.into_iter().zip(counts).map(|((name, mailbox), row)| {
        let woken: i64 = row.get("woken")?;
        let (waiting, held, failed): (i64, i64, i64) =
            (row.get("waiting")?, row.get("held")?, row.get("failed")?);
        let mut shown = Box {
            oldest_at: heads.iter().find(|head| head.mailbox == name).map(|head| head.created_at),
            name,
            paused: mailbox.paused,
            ready: row.get::<i64>("ready")? + woken,
            waiting: waiting - held - woken,
            processing: row.get("processing")?,
            held,
            failed,
            processed: row.get::<i64>("finished")? - failed,
            settings: mailbox.settings,
        };
        for message in overdue.iter().filter(|message| message.mailbox == shown.name) {
            *match message.status() {
                Status::Pending if message.is_ready(tx.now) => &mut shown.ready,
                Status::Pending => &mut shown.waiting,
                Status::Processing => &mut shown.processing,
                Status::Processed => &mut shown.processed,
                Status::Failed => &mut shown.failed,
                Status::Held => &mut shown.held,
            } += 1;
        }
        Ok(shown)
    });
    boxes.collect()
}
