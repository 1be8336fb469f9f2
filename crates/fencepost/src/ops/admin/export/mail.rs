//! Exports messages as expiry would write them now, without claims.

use super::{Read, number, that_fit};
use crate::{
    db::{Batch, Row, Tx, by_keys},
    error::{Error, Result},
    ids::{EXPORTED, exported_id},
    ops::{
        admin::import::{MailItem, MailState},
        mail::{self, Record, Status, record::columns},
        task::{PRIORITY, import::CheckpointItem},
    },
    params,
};
use std::collections::{BTreeMap, HashMap};

pub(super) async fn messages(tx: &mut Tx<'_>, after: &str, limit: i64) -> Result<Read<MailItem>> {
    let sizes = "select message.id, cast(message.size + coalesce(octet_length(doc.checkpoint), 0)
           + coalesce((select sum(octet_length(output)) from message_output where message_output.message = message.id), 0)
           as bigint) as size
         from message left join message_doc as doc on doc.message = message.id
         where message.id > ?1 order by message.id limit ?2";
    let (fit, more) = that_fit(tx.query(sizes, params![number(after)?, limit + 1]).await?, limit)?;
    let keys = fit.iter().map(|row| row.get("id")).collect::<Result<Vec<i64>>>()?;
    let Some(last) = keys.last() else { return Ok((Vec::new(), None)) };
    let last = more.then(|| last.to_string());
    let mut items = BTreeMap::new();
    let mut unread = keys;
    for _ in 0..TRIES {
        unread = read(tx, &unread, &mut items).await?;
        if unread.is_empty() {
            return Ok((items.into_values().collect(), last));
        }
    }
    Err(Error::raced("messages change faster than they can be read"))
}

/// Number of times that messages are read again if they change during the read.
const TRIES: usize = 20;

/// Reads these messages, and returns those that changed during the read: on PostgreSQL each statement has its own
/// snapshot, and a completion clears the payload when it adds the outputs.
async fn read(tx: &mut Tx<'_>, keys: &[i64], items: &mut BTreeMap<i64, MailItem>) -> Result<Vec<i64>> {
    let mut batch = Batch::new();
    let records = batch.add(by_keys!(read, keys, columns!("where message.id"), ""));
    let docs = batch.add(by_keys!(
        read,
        keys,
        "select message, payload, headers, checkpoint from message_doc where message",
        ""
    ));
    let outputs = batch.add(by_keys!(
        read,
        keys,
        "select message, output from message_output where message",
        "order by message, n"
    ));
    let after = batch.add(by_keys!(read, keys, "select id, fence, status from message where id", ""));
    let mut answers = tx.send(batch).await?;
    let records = answers.take(records).rows;
    let (before, after) = (versions(&records)?, versions(&answers.take(after).rows)?);
    let records = Record::read_all(records)?;
    let is_same = |message: &Record| before.get(&message.id) == after.get(&message.id);
    let (same, changed): (Vec<_>, Vec<_>) = records.into_iter().partition(is_same);
    let mut found: HashMap<i64, MailItem> =
        mail::now(tx, same).await?.into_iter().map(|message| (message.id, item(message))).collect();
    for row in answers.take(docs).rows {
        if let Some(item) = found.get_mut(&row.get("message")?) {
            item.add_texts(row)?;
        }
    }
    for mut row in answers.take(outputs).rows {
        if let Some(item) = found.get_mut(&row.get("message")?) {
            item.outputs.push(row.take("output")?);
        }
    }
    items.extend(found);
    Ok(changed.into_iter().map(|message| message.id).collect())
}

/// Fence and status of each row, as they are stored: a damaged row must not look like one that changes all the time.
fn versions(rows: &[Row]) -> Result<HashMap<i64, (i64, String)>> {
    rows.iter().map(|row| Ok((row.get("id")?, (row.get("fence")?, row.get("status")?)))).collect()
}

fn item(message: Record) -> MailItem {
    let status = message.status();
    let held = i64::from(status == Status::Processing);
    let (id, created) = (message.id, message.created_at);
    MailItem {
        key: message.key.unwrap_or_else(|| format!("{EXPORTED}{}", exported_id(id, created))),
        mailbox: message.mailbox,
        kind: message.kind,
        status: match status {
            Status::Pending | Status::Processing => MailState::Pending,
            Status::Processed => MailState::Processed,
            Status::Failed => MailState::Failed,
            Status::Held => MailState::Held,
        },
        outcome: message.outcome.filter(|_| status.is_finished()),
        priority: Some(message.priority).filter(|priority| *priority != PRIORITY),
        lane: message.lane.filter(|lane| !lane.is_empty()),
        // An export does not use up the holder's attempt.
        attempts: message.attempts - held,
        max_attempts: Some(message.max_attempts),
        delayed_until: message.delayed_until.filter(|_| status == Status::Pending),
        failure_reason: message.failure_reason,
        created_at: Some(created),
        finished_at: message.phase.finished_at(),
        ..MailItem::default()
    }
}

impl MailItem {
    fn add_texts(&mut self, mut row: Row) -> Result<()> {
        self.payload = row.take("payload")?;
        if let Some(headers) = row.take::<Option<String>>("headers")? {
            self.headers = serde_json::from_str(&headers).map_err(Error::internal)?;
        }
        let checkpoint: Option<String> = row.take("checkpoint")?;
        self.checkpoint = checkpoint.as_deref().map(CheckpointItem::read).transpose()?;
        Ok(())
    }
}
