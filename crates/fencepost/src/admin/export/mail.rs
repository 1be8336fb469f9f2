//! Messages of mailboxes as they are now: what expiry would write is in it, and nobody holds anything.

use super::{Read, number, that_fit};
use crate::{
    admin::import::{MailItem, MailState},
    error::{Error, Result},
    mail::{self, Record, Status, record::columns},
    names::{EXPORTED, exported_id},
    params,
    task::{PRIORITY, import::CheckpointItem},
    tx::{Row, Tx, by_keys},
};
use std::collections::HashMap;

pub(super) async fn messages(tx: &mut Tx<'_>, after: &str, limit: i64) -> Result<Read<MailItem>> {
    let sizes = "select message.id, cast(message.size + coalesce(length(doc.checkpoint), 0)
           + coalesce((select sum(length(output)) from message_output where message_output.message = message.id), 0)
           as bigint) as size
         from message left join message_doc as doc on doc.message = message.id
         where message.id > ?1 order by message.id limit ?2";
    let (fit, more) = that_fit(tx.query(sizes, params![number(after)?, limit + 1]).await?, limit)?;
    let keys = fit.iter().map(|row| row.get("id")).collect::<Result<Vec<i64>>>()?;
    let Some(last) = keys.last() else { return Ok((Vec::new(), None)) };
    let last = more.then(|| last.to_string());
    let statements = vec![
        by_keys!(keys.as_slice(), columns!("where message.id"), "order by message.id"),
        by_keys!(
            keys.as_slice(),
            "select message, payload, headers, checkpoint from message_doc where message",
            ""
        ),
        by_keys!(
            keys.as_slice(),
            "select message, output from message_output where message",
            "order by message, n"
        ),
    ];
    let mut answers = tx.pipeline(statements).await?.into_iter().map(|answer| answer.rows);
    let mut rows = || answers.next().unwrap_or_default();
    let (records, docs, outputs) = (Record::read_all(rows())?, rows(), rows());
    let at: HashMap<i64, usize> = records.iter().enumerate().map(|(i, message)| (message.id, i)).collect();
    let mut items: Vec<MailItem> = mail::now(tx, records).await?.into_iter().map(item).collect();
    for row in docs {
        items[at[&row.get("message")?]].add_texts(row)?;
    }
    for mut row in outputs {
        items[at[&row.get("message")?]].outputs.push(row.take("output")?);
    }
    Ok((items, last))
}

fn item(message: Record) -> MailItem {
    let held = i64::from(message.status == Status::Processing);
    let (id, created) = (message.id, message.created_at);
    MailItem {
        key: message.key.unwrap_or_else(|| format!("{EXPORTED}{}", exported_id(id, created))),
        mailbox: message.mailbox,
        kind: message.kind,
        status: match message.status {
            Status::Pending | Status::Processing => MailState::Pending,
            Status::Processed => MailState::Processed,
            Status::Failed => MailState::Failed,
            Status::Held => MailState::Held,
        },
        outcome: message.outcome.filter(|_| message.status.is_finished()),
        priority: Some(message.priority).filter(|priority| *priority != PRIORITY),
        lane: message.lane.filter(|lane| !lane.is_empty()),
        // Moving is no failure of whoever is at it.
        attempts: message.attempts - held,
        max_attempts: Some(message.max_attempts),
        delayed_until: message.delayed_until.filter(|_| message.status == Status::Pending),
        failure_reason: message.failure_reason,
        created_at: Some(created),
        finished_at: message.finished_at,
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
