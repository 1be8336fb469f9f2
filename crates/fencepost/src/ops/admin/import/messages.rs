//! Imports inbox messages. Each is pushed like any message, and finished at once if it was handled elsewhere.

use super::{Dealt, Import, MessageItem, Taken, differs};
use crate::{
    clock::Time,
    db::{Tx, set},
    error::{Error, Result},
    ids::TaskId,
    json::Json,
    lease::Under,
    limits::{OUTPUT_MAX, check},
    ops::{
        inbox::{self, Content, Status},
        mail::{
            self,
            push_many::{self, Keys},
            record,
        },
    },
    params,
};
use serde_json::json;
use std::collections::HashMap;

impl Dealt {
    pub fn status(self) -> Status {
        match self {
            Dealt::Unread => Status::Unread,
            Dealt::Read => Status::Read,
            Dealt::Responded => Status::Responded,
            Dealt::Delegated => Status::Delegated,
        }
    }
}

impl MessageItem {
    /// Refuses an item that an import would not accept. `at` is the item's position in the request.
    pub fn check(&self, at: &str) -> Result<()> {
        let field = |name: &str| format!("{at}{name}");
        check::plain_name(&field("agent"), &self.agent)?;
        Content::from(self.content.clone()).check(&field("content."))?;
        check::optional_text(&field("response"), self.response.as_deref(), OUTPUT_MAX)?;
        if let Some(task) = &self.task {
            TaskId::check(&field("task"), task)?;
        }
        let misplaced = [
            ("response", self.response.is_some() && self.status != Dealt::Responded, "responded"),
            ("task", self.task.is_some() && self.status != Dealt::Delegated, "delegated"),
            ("finished_at", self.finished_at.is_some() && self.status == Dealt::Unread, "handled"),
        ];
        match misplaced.iter().find(|(_, is_misplaced, _)| *is_misplaced) {
            Some((name, _, state)) => {
                Err(Error::invalid(&field(name), format!("is only for a message that is {state}")))
            }
            None => Ok(()),
        }
    }

    /// The output, in the form that the inbox ops store.
    fn output(&self) -> Result<Option<Json>> {
        match (&self.response, &self.task) {
            (Some(response), _) => Json::of(response).map(Some),
            (None, Some(task)) => Json::of(&json!({ "task": task })).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// The creation and finishing times, in that order and not in the future.
    fn times(&self, now: Time) -> (Time, Time) {
        let finished = self.finished_at.map_or(now, |at| at.min(now));
        let latest = if self.status == Dealt::Unread { now } else { finished };
        (self.created_at.map_or(latest, |at| at.min(latest)), finished)
    }
}

impl Import {
    pub(super) async fn messages(&self, tx: &mut Tx<'_>) -> Result<Taken> {
        let mut taken = Taken::default();
        if self.messages.is_empty() {
            return Ok(taken);
        }
        let mailboxes: Vec<String> = self.messages.iter().map(|item| inbox::mailbox(&item.agent)).collect();
        let keys: Vec<String> = self.messages.iter().map(|item| self.key(&item.id)).collect();
        let by_key: Keys<'_> =
            (0..keys.len()).map(|i| ((mailboxes[i].as_str(), keys[i].as_str()), i)).collect();
        let known = push_many::find(tx.one(push_many::by_key(&by_key)?).await?.rows, &by_key)?;
        let (mut new, mut pushes) = (Vec::new(), Vec::new());
        for (i, item) in self.messages.iter().enumerate() {
            if let Some(there) = known.get(&i) {
                let here = Status::of(there.status(), there.outcome.as_deref());
                let status = differs("status", here.as_str(), item.status.status().as_str());
                taken.there(&item.id, status.into_iter().collect());
                continue;
            }
            let content = Content::from(item.content.clone());
            pushes.push(push_many::Item {
                mailbox: mailboxes[i].clone(),
                kind: Some(content.source.clone()),
                payload: Some(Json::of(&content)?),
                key: Some(keys[i].clone()),
                ..Default::default()
            });
            new.push(item);
            taken.imported.push(item.id.clone());
        }
        if !self.dry_run && !new.is_empty() {
            let pushed = push_many::push(tx, pushes).await?.messages;
            let new: Vec<_> = pushed.iter().map(|message| message.id).zip(new).collect();
            date(tx, &new).await?;
            finish(tx, &new).await?;
        }
        Ok(taken)
    }
}

/// Sets the original creation times.
async fn date(tx: &mut Tx<'_>, new: &[(i64, &MessageItem)]) -> Result<()> {
    let rows = new.iter().map(|(id, item)| json!({ "id": id, "at": item.times(tx.now).0.0 }));
    tx.execute(
        "update message set created_at = cast(item.value ->> 'at' as bigint) from json_each(?1) as item
         where message.id = cast(item.value ->> 'id' as bigint)",
        params![set(rows)?],
    )
    .await?;
    Ok(())
}

/// Finishes the messages that were handled elsewhere, with their outcome and output. The event holds the content.
async fn finish(tx: &mut Tx<'_>, new: &[(i64, &MessageItem)]) -> Result<()> {
    let dealt: HashMap<i64, &MessageItem> =
        new.iter().copied().filter(|(_, item)| item.status != Dealt::Unread).collect();
    if dealt.is_empty() {
        return Ok(());
    }
    let mut ids: Vec<i64> = dealt.keys().copied().collect();
    ids.sort_unstable();
    let mut found = record::load_locked(tx, &ids).await?;
    let (mut changes, mut events, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
    for id in &ids {
        let Some(before) = found.remove(id) else { continue };
        let item = dealt[id];
        let after = mail::Record {
            phase: mail::Phase::Processed(item.times(tx.now).1),
            outcome: Some(item.status.status().as_str().into()),
            updated_at: tx.now,
            ..before.clone()
        };
        let content = json!({ "key": before.key, "content": item.content });
        events.push(after.event("message.completed", &before).details(content));
        if let Some(output) = item.output()? {
            outputs.push(json!({ "id": id, "fence": before.fence, "output": output.text() }));
        }
        changes.push((before, after));
    }
    record::save(tx, &changes, Under::NoClaim, events).await?;
    if !outputs.is_empty() {
        tx.execute(
            "insert into message_output(message, n, fence, output)
             select cast(value ->> 'id' as bigint), 0, cast(value ->> 'fence' as bigint), value ->> 'output'
             from json_each(?1) order by key",
            params![set(outputs)?],
        )
        .await?;
    }
    Ok(())
}
