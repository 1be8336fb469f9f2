//! Imports messages of any mailbox. Each is pushed like any message, and then gets the state that it had elsewhere.

use super::{Import, MailItem, MailState, Taken, differs};
use crate::{
    clock::Time,
    db::{Batch, Stmt, Tx, set},
    error::{Code, Error, Result},
    ids::{EXPORTED, exported_number},
    json::Json,
    lease::Under,
    limits::{ATTEMPTS_MAX, NAME_MAX, OUTPUT_MAX, OUTPUTS_MAX, PAYLOAD_MAX, TEXT_MAX, check},
    ops::{
        mail::{
            MAX_ATTEMPTS, Mailbox, Phase, Record, Status, by_name,
            push_many::{self, Keys},
            record::{self, columns},
            rows_of,
        },
        task::PRIORITY,
    },
    params,
};
use serde_json::json;
use std::collections::HashMap;

impl MailState {
    pub fn status(self) -> Status {
        match self {
            MailState::Pending => Status::Pending,
            MailState::Processed => Status::Processed,
            MailState::Failed => Status::Failed,
            MailState::Held => Status::Held,
        }
    }
}

impl MailItem {
    /// Refuses an item that an import would not accept. `at` is the item's position in the request.
    pub fn check(&self, at: &str) -> Result<()> {
        let field = |name: &str| format!("{at}{name}");
        check::line(&field("key"), &self.key, NAME_MAX)?;
        check::path_name(&field("mailbox"), &self.mailbox)?;
        check::optional_json(&field("payload"), self.payload.as_deref(), PAYLOAD_MAX)?;
        check::optional_name(&field("kind"), self.kind.as_deref())?;
        check::range(&field("priority"), self.priority.unwrap_or(PRIORITY), 0, 100)?;
        check::range(&field("max_attempts"), self.max_attempts.unwrap_or(1), 1, ATTEMPTS_MAX)?;
        check::range(&field("attempts"), self.attempts, 0, ATTEMPTS_MAX)?;
        for (name, value) in [("outcome", &self.outcome), ("lane", &self.lane)] {
            value.as_ref().map_or(Ok(()), |value| check::line(&field(name), value, NAME_MAX))?;
        }
        check::text(&field("headers"), &json!(self.headers).to_string(), TEXT_MAX)?;
        self.headers.keys().try_for_each(|name| check::plain_name(&field("headers"), name))?;
        self.headers.values().try_for_each(|value| check::text(&field("headers"), value, TEXT_MAX))?;
        check::optional_text(&field("failure_reason"), self.failure_reason.as_deref(), TEXT_MAX)?;
        self.checkpoint.as_ref().map_or(Ok(()), |checkpoint| checkpoint.check(&field("checkpoint.")))?;
        check::range(&field("outputs"), self.outputs.len() as i64, 0, OUTPUTS_MAX as i64)?;
        let size: usize = self.outputs.iter().map(String::len).sum();
        if size > OUTPUT_MAX {
            let message =
                format!("`{}` have {size} bytes; at most {OUTPUT_MAX} are allowed", field("outputs"));
            return Err(Error::new(Code::TooLarge, message)
                .with("field", field("outputs"))
                .with("max", OUTPUT_MAX));
        }
        self.outputs.iter().try_for_each(|output| check::json(&field("outputs"), output, OUTPUT_MAX))?;
        let finished = matches!(self.status, MailState::Processed | MailState::Failed);
        let misplaced = [
            ("outcome", self.outcome.is_some() && !finished, "finished"),
            ("finished_at", self.finished_at.is_some() && !finished, "finished"),
            ("outputs", !self.outputs.is_empty() && self.status != MailState::Processed, "processed"),
            ("delayed_until", self.delayed_until.is_some() && self.status != MailState::Pending, "pending"),
        ];
        match misplaced.iter().find(|(_, is_misplaced, _)| *is_misplaced) {
            Some((name, _, state)) => {
                Err(Error::invalid(&field(name), format!("is only for a message that is {state}")))
            }
            None => Ok(()),
        }
    }

    /// Refuses a message that its mailbox's settings do not allow.
    fn fits(&self, mailbox: Option<&Mailbox>, at: &str) -> Result<()> {
        let (strict, most) = mailbox.map_or((false, MAX_ATTEMPTS), |mailbox| {
            (mailbox.settings.strict, mailbox.settings.max_attempts)
        });
        if strict && self.priority.is_some() {
            let message = "cannot be set: a strict mailbox hands out its messages in order";
            return Err(Error::invalid(&format!("{at}priority"), message));
        }
        if !strict && self.lane.is_some() {
            return Err(Error::invalid(&format!("{at}lane"), "is for strict mailboxes, and this one is not")
                .hint(
                    "only a new mailbox can be made strict: import into a fleet that does not have this one",
                ));
        }
        check::range(&format!("{at}attempts"), self.attempts, 0, self.max_attempts.unwrap_or(most))
    }

    /// A processed message keeps its payload only if it was taken, or is in an inbox.
    fn keeps_payload(&self) -> bool {
        self.status != MailState::Processed
            || self.outcome.as_deref() == Some("taken")
            || self.mailbox.starts_with("inbox/")
    }

    fn push(&self) -> Result<push_many::Item> {
        let payload = self.payload.clone().filter(|_| self.keeps_payload());
        Ok(push_many::Item {
            mailbox: self.mailbox.clone(),
            payload: payload.map(Json::stored).transpose()?,
            kind: self.kind.clone(),
            key: Some(self.key.clone()),
            priority: self.priority,
            lane: self.lane.clone(),
            headers: self.headers.clone(),
            max_attempts: self.max_attempts,
            delay_ms: None,
        })
    }

    fn is_as_pushed(&self, now: Time) -> bool {
        self.status == MailState::Pending
            && self.attempts == 0
            && self.failure_reason.is_none()
            && self.delayed_until.is_none_or(|until| until <= now)
    }

    /// The creation and finishing times, in that order and not in the future.
    fn times(&self, now: Time) -> (Time, Time) {
        let finished = self.finished_at.map_or(now, |at| at.min(now));
        let latest = if self.status.status().is_finished() { finished } else { now };
        (self.created_at.map_or(latest, |at| at.min(latest)), finished)
    }

    fn state(&self, before: &Record, now: Time) -> Record {
        let finished_at = self.times(now).1;
        Record {
            phase: match self.status {
                MailState::Pending => Phase::Pending,
                MailState::Held => Phase::SetAside,
                MailState::Processed => Phase::Processed(finished_at),
                MailState::Failed => Phase::Failed(finished_at),
            },
            outcome: self.outcome.clone(),
            attempts: self.attempts,
            failure_reason: self.failure_reason.clone(),
            delayed_until: self.delayed_until.filter(|until| *until > now),
            updated_at: now,
            ..before.clone()
        }
    }
}

impl Import {
    pub(super) async fn mail(&self, tx: &mut Tx<'_>) -> Result<Taken> {
        let mut taken = Taken::default();
        if self.mail.is_empty() {
            return Ok(taken);
        }
        let mut keys: Keys<'_> = HashMap::new();
        for (i, item) in self.mail.iter().enumerate() {
            if keys.insert((item.mailbox.as_str(), item.key.as_str()), i).is_some() {
                let twice = format!("`{}` is given twice", item.key);
                return Err(Error::invalid(&format!("mail[{i}].key"), twice));
            }
        }
        let mut batch = Batch::new();
        let known = batch.add(push_many::by_key(&keys)?);
        let mailboxes = batch.add(rows_of(self.mail.iter().map(|item| item.mailbox.as_str()))?);
        let mut answers = tx.send(batch).await?;
        let mailboxes = by_name(&answers.take(mailboxes).rows)?;
        let mut known = push_many::find(answers.take(known).rows, &keys)?;
        known.extend(self.mail_of_this_fleet(tx, &keys).await?);
        let (mut new, mut pushes) = (Vec::new(), Vec::new());
        for (i, item) in self.mail.iter().enumerate() {
            let name = format!("{} {}", item.mailbox, item.key);
            if let Some(there) = known.get(&i) {
                let status = differs("status", there.status().as_str(), item.status.status().as_str());
                taken.there(&name, status.into_iter().collect());
                continue;
            }
            let made = || self.mailboxes.iter().find(|mailbox| mailbox.name == item.mailbox);
            let made = if self.dry_run { made().map(|mailbox| mailbox.mailbox()) } else { None };
            item.fits(mailboxes.get(&item.mailbox).or(made.as_ref()), &format!("mail[{i}]."))?;
            pushes.push(item.push()?);
            new.push(item);
            taken.imported.push(name);
        }
        if !self.dry_run && !new.is_empty() {
            let pushed = push_many::push(tx, pushes).await?;
            // Another caller has pushed a message with the same key: leave that message alone.
            if !pushed.existing.is_empty() {
                return Err(Error::raced("a message with the same key was pushed at this moment"));
            }
            let new: Vec<_> = pushed.messages.iter().map(|message| message.id).zip(new).collect();
            set_states(tx, &new).await?;
        }
        Ok(taken)
    }

    /// Messages without a key that were exported from this same fleet, found by number and time.
    async fn mail_of_this_fleet(&self, tx: &mut Tx<'_>, keys: &Keys<'_>) -> Result<HashMap<usize, Record>> {
        let own = |key: &str| exported_number(key.strip_prefix(EXPORTED)?);
        let ids =
            keys.iter().filter_map(|((mailbox, key), i)| own(key).map(|(id, at)| ((*mailbox, id, at), *i)));
        let ids: HashMap<(&str, i64, Time), usize> = ids.collect();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let rows = set(ids.keys().map(|(_, id, _)| json!({ "id": id })))?;
        let sql = columns!(
            "where message.idempotency_key is null
             and message.id in (select cast(value ->> 'id' as bigint) from json_each(?1))"
        );
        let found =
            Record::read_all(tx.query(sql, params![rows]).await?)?.into_iter().filter_map(|message| {
                let item = ids.get(&(message.mailbox.as_str(), message.id, message.created_at))?;
                Some((*item, message))
            });
        Ok(found.collect())
    }
}

/// Gives new messages the times, states, checkpoints and outputs that they had elsewhere.
async fn set_states(tx: &mut Tx<'_>, new: &[(i64, &MailItem)]) -> Result<()> {
    let dates = new.iter().map(|(id, item)| json!({ "id": id, "at": item.times(tx.now).0.0 }));
    let mut batch = Batch::new();
    batch.add(Stmt::write(
        "update message set created_at = cast(item.value ->> 'at' as bigint) from json_each(?1) as item
         where message.id = cast(item.value ->> 'id' as bigint)",
        params![set(dates)?],
    ));
    let mut checkpoints = Vec::new();
    for (id, item) in new {
        if let Some(checkpoint) = &item.checkpoint {
            checkpoints.push(json!({ "id": id, "n": checkpoint.ordinal, "text": checkpoint.stored()? }));
        }
    }
    if !checkpoints.is_empty() {
        batch.add(Stmt::write(
            "update message_doc set checkpoint_n = cast(item.value ->> 'n' as bigint), checkpoint = item.value ->> 'text'
             from json_each(?1) as item where message_doc.message = cast(item.value ->> 'id' as bigint)",
            params![set(checkpoints)?],
        ));
    }
    tx.send(batch).await?;
    let changed: Vec<_> = new.iter().filter(|(_, item)| !item.is_as_pushed(tx.now)).collect();
    if changed.is_empty() {
        return Ok(());
    }
    let ids: Vec<i64> = changed.iter().map(|(id, _)| *id).collect();
    let mut found = record::load_locked(tx, &ids).await?;
    let (mut changes, mut events, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
    for (id, item) in changed {
        let Some(before) = found.remove(id) else { continue };
        let after = item.state(&before, tx.now);
        events.push(after.event("message.imported", &before).details(json!({ "key": item.key })));
        let output =
            |(n, text): (usize, &String)| json!({ "id": id, "n": n, "fence": before.fence, "output": text });
        outputs.extend(item.outputs.iter().enumerate().map(output));
        changes.push((before, after));
    }
    record::save(tx, &changes, Under::NoClaim, events).await?;
    if !outputs.is_empty() {
        let insert = "insert into message_output(message, n, fence, output)
             select cast(value ->> 'id' as bigint), cast(value ->> 'n' as bigint), cast(value ->> 'fence' as bigint),
               value ->> 'output' from json_each(?1) order by key";
        tx.execute(insert, params![set(outputs)?]).await?;
    }
    Ok(())
}
