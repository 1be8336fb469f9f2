use super::{
    Mailbox, Message, Settings, Status, by_name, lane,
    record::{Record, columns},
    rows_of,
};
use crate::{
    caller::Access,
    clock::Millis,
    db::{Batch, Stmt, Tx, by_keys, numbered, set},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    json::Json,
    limits::{ATTEMPTS_MAX, CLAIMS_MAX, NAME_MAX, PAYLOAD_MAX, TEXT_MAX, TTL_MAX, check},
    log::{Event, cause},
    ops::task::PRIORITY,
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Push many messages, in this order: all of them or none.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PushMany {
    pub messages: Vec<Item>,
    /// Request id: repeating the call with the same id returns the first reply.
    #[serde(default)]
    pub request: Option<String>,
}

/// A message to push. The fields are those of `mail/push`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Item {
    pub mailbox: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Json>,
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PushedMany {
    /// In the order of the request.
    pub messages: Vec<Message>,
    /// Ids of messages that already existed with the same key.
    pub existing: Vec<i64>,
}

impl Op for PushMany {
    const NAME: &'static str = "mail/push_many";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"messages":[{"mailbox":"builds"}]}"#;
    refuses![AlreadyFinished];
    type Reply = PushedMany;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<PushedMany> {
        check::request(self.request.as_deref())?;
        check::range("messages", self.messages.len() as i64, 1, CLAIMS_MAX)?;
        for (i, item) in self.messages.iter().enumerate() {
            tx.caller.may_push(&format!("messages[{i}].mailbox"), &item.mailbox)?;
        }
        push(tx, self.messages).await
    }
}

impl Item {
    fn check(&self, at: &str) -> Result<()> {
        let field = |name: &str| format!("{at}{name}");
        check::path_name(&field("mailbox"), &self.mailbox)?;
        check::optional_json(&field("payload"), self.payload.as_ref().map(Json::text), PAYLOAD_MAX)?;
        check::optional_name(&field("type"), self.kind.as_deref())?;
        check::range(&field("priority"), self.priority.unwrap_or(PRIORITY), 0, 100)?;
        check::range(&field("max_attempts"), self.max_attempts.unwrap_or(1), 1, ATTEMPTS_MAX)?;
        check::span(&field("delay_ms"), self.delay_ms.unwrap_or_default(), Millis(0), TTL_MAX)?;
        for (name, value) in [("key", &self.key), ("lane", &self.lane)] {
            value.as_ref().map_or(Ok(()), |value| check::line(&field(name), value, NAME_MAX))?;
        }
        check::text(&field("headers"), &json!(self.headers).to_string(), TEXT_MAX)?;
        for (name, value) in &self.headers {
            check::plain_name(&field("headers"), name)?;
            check::text(&field("headers"), value, TEXT_MAX)?;
        }
        Ok(())
    }

    /// A strict mailbox takes no priority, and only a strict mailbox takes a lane.
    fn fits(&self, settings: &Settings, at: &str) -> Result<()> {
        if settings.strict && self.priority.is_some() {
            let message = "cannot be set: a strict mailbox hands out its messages in order";
            return Err(Error::invalid(&format!("{at}priority"), message));
        }
        if !settings.strict && self.lane.is_some() {
            return Err(Error::invalid(&format!("{at}lane"), "is for strict mailboxes, and this one is not")
                .hint("fence mail configure MAILBOX --strict creates one, before its first message"));
        }
        Ok(())
    }
}

/// Pushes a set with a few statements. A message that already exists with the same key is left unchanged.
pub(crate) async fn push(tx: &mut Tx<'_>, items: Vec<Item>) -> Result<PushedMany> {
    let at = |i: usize| if items.len() == 1 { String::new() } else { format!("messages[{i}].") };
    let mut keys = HashMap::new();
    for (i, item) in items.iter().enumerate() {
        item.check(&at(i))?;
        if let Some(key) = &item.key
            && keys.insert((item.mailbox.as_str(), key.as_str()), i).is_some()
        {
            return Err(Error::invalid(&format!("{}key", at(i)), format!("`{key}` is given twice")));
        }
    }
    if tx.opening.is_repeat("message.pushed", None)? {
        return repeated(tx, &items, &keys).await;
    }
    let mut batch = Batch::new();
    let mailboxes = batch.add(rows_of(items.iter().map(|item| item.mailbox.as_str()))?);
    let known = batch.add(by_key(&keys)?);
    let mut answers = tx.send(batch).await?;
    let mut mailboxes = by_name(&answers.take(mailboxes).rows)?;
    let known = find(answers.take(known).rows, &keys)?;
    let missing: BTreeSet<&str> = items.iter().map(|item| item.mailbox.as_str()).collect();
    let missing: Vec<&str> = missing.into_iter().filter(|name| !mailboxes.contains_key(*name)).collect();
    if !missing.is_empty() {
        make(tx, &missing).await?;
        mailboxes.extend(missing.iter().map(|name| ((*name).to_owned(), Mailbox::default())));
    }
    let settings = |item: &Item| &mailboxes[&item.mailbox].settings;
    for (i, item) in items.iter().enumerate() {
        item.fits(settings(item), &at(i))?;
    }
    let fresh: Vec<usize> = (0..items.len()).filter(|i| !known.contains_key(i)).collect();
    let new =
        insert(tx, &fresh.iter().map(|&i| (&items[i], settings(&items[i]))).collect::<Vec<_>>()).await?;
    let mut new = new.into_iter();
    let existing = (0..items.len()).filter_map(|i| known.get(&i)).map(|message| message.id).collect();
    let mut known = known;
    let messages = (0..items.len())
        .filter_map(|i| known.remove(&i).map(|there| there.view(tx.now)).or_else(|| new.next()));
    Ok(PushedMany { messages: messages.collect(), existing })
}

/// Creates mailboxes. If another call has just created one of them, it may be strict, so this call starts over.
async fn make(tx: &mut Tx<'_>, names: &[&str]) -> Result<()> {
    let rows = set(names.iter().map(|name| json!({ "name": name })))?;
    let made = tx
        .execute(
            "insert into mailbox(name, created_at) select value ->> 'name', cast(?1 as bigint) from json_each(?2)
             where true order by key on conflict (name) do nothing",
            params![tx.now, rows],
        )
        .await?;
    if made < names.len() as u64 {
        return Err(Error::raced("a mailbox was created at this moment"));
    }
    Ok(())
}

async fn insert(tx: &mut Tx<'_>, items: &[(&Item, &Settings)]) -> Result<Vec<Message>> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let mut messages = Vec::with_capacity(items.len());
    let mut rows = Vec::with_capacity(items.len());
    let mut lanes = HashSet::new();
    for (item, settings) in items {
        let lane = settings.strict.then(|| item.lane.clone().unwrap_or_default());
        let message = Message {
            mailbox: item.mailbox.clone(),
            kind: item.kind.clone(),
            priority: item.priority.unwrap_or(PRIORITY),
            lane: item.lane.clone(),
            idempotency_key: item.key.clone(),
            delayed_until: item.delay_ms.filter(|delay| delay.0 > 0).map(|delay| tx.now.plus(delay)),
            max_attempts: item.max_attempts.unwrap_or(settings.max_attempts),
            created_at: tx.now,
            updated_at: tx.now,
            headers: item.headers.clone(),
            ..Message::default()
        };
        let first = lane.as_ref().is_none_or(|lane| lanes.insert((&item.mailbox, lane.clone())));
        rows.push(json!({
            "mailbox": message.mailbox, "lane": lane, "kind": message.kind, "key": message.idempotency_key,
            "priority": message.priority, "max": message.max_attempts,
            "size": item.payload.as_ref().map_or(0, |payload| payload.text().len()),
            "delayed": message.delayed_until.map(|at| at.0), "behind": i64::from(!first),
        }));
        messages.push(message);
    }
    let rows = set(rows)?;
    let mut batch = Batch::new();
    if !lanes.is_empty() {
        batch.add(lane::lock(rows.clone()));
    }
    // Ids follow the order of the list. On PostgreSQL rows are written in key order: two calls that push the same keys
    // in different orders would deadlock.
    let inserted = batch.add(Stmt::write(
        concat!("insert into message(/*pg id,*/ mailbox, lane, kind, idempotency_key, priority, max_attempts, size, created_at, status,
           behind, delayed_until, updated_at)
         /*pg overriding system value*/
         select /*pg number,*/ value ->> 'mailbox', value ->> 'lane', value ->> 'kind', value ->> 'key',
           cast(value ->> 'priority' as bigint), cast(value ->> 'max' as bigint), cast(value ->> 'size' as bigint),
           cast(?1 as bigint), 'pending',
           case when cast(value ->> 'behind' as bigint) = 1 then 1
             when value ->> 'lane' is null then 0
             when 1 = (select 1 from message as other where other.mailbox = value ->> 'mailbox'
               and other.lane = value ->> 'lane' and other.lane is not null and other.finished_at is null limit 1) then 1
             else 0 end,
           cast(value ->> 'delayed' as bigint), cast(?1 as bigint)
         from ", numbered!("message", "id"), " where true order by /*pg value ->> 'mailbox', value ->> 'key',*/ key
         on conflict (mailbox, idempotency_key) where idempotency_key is not null do nothing returning id"),
        params![tx.now, rows],
    ));
    let inserted = tx.send(batch).await?.take(inserted).rows;
    let mut ids = inserted.iter().map(|row| row.get("id")).collect::<Result<Vec<i64>>>()?;
    if ids.len() < items.len() {
        return Err(Error::raced("a message with the same key was pushed at this moment"));
    }
    ids.sort_unstable();
    for (message, id) in messages.iter_mut().zip(ids) {
        message.id = id;
    }
    let docs = messages.iter().zip(items).map(|(message, (item, _))| {
        json!({
            "message": message.id, "payload": item.payload.as_ref().map(Json::text),
            "headers": (!item.headers.is_empty()).then(|| json!(item.headers).to_string()),
        })
    });
    let events = messages.iter().map(|message| {
        let mut event = Event::new("message.pushed", format!("message/{}", message.id))
            .details(json!({ "mailbox": message.mailbox }));
        event.to = Some(Status::Pending.as_str());
        event.topic = Some(Topic::mail(&message.mailbox));
        event
    });
    let docs = Stmt::write(
        "insert into message_doc(message, payload, headers)
         select cast(value ->> 'message' as bigint), value ->> 'payload', value ->> 'headers'
         from json_each(?1) order by key",
        params![set(docs)?],
    );
    let events = Event::insert_many(tx, events.collect())?;
    tx.send(Batch::from([docs, events])).await?;
    cause::record(tx, None, messages.iter().map(|message| format!("message/{}", message.id))).await?;
    Ok(messages)
}

pub(crate) type Keys<'i> = HashMap<(&'i str, &'i str), usize>;

pub(crate) fn by_key(keys: &Keys<'_>) -> Result<Stmt> {
    let rows = set(keys.keys().map(|(mailbox, key)| json!({ "mailbox": mailbox, "key": key })))?;
    Ok(Stmt::read(
        columns!(
            "join json_each(?1) as item
               on message.mailbox = item.value ->> 'mailbox' and message.idempotency_key = item.value ->> 'key'"
        ),
        params![rows],
    ))
}

/// The existing messages, by the index of the item with the same key.
pub(crate) fn find(rows: Vec<crate::db::Row>, keys: &Keys<'_>) -> Result<HashMap<usize, Record>> {
    let known = Record::read_all(rows)?.into_iter().filter_map(|message| {
        let item = keys.get(&(message.mailbox.as_str(), message.key.as_deref()?))?;
        Some((*item, message))
    });
    Ok(known.collect())
}

/// A repeated request: the messages that it pushed, and those that it found by key, in their current state.
async fn repeated(tx: &mut Tx<'_>, items: &[Item], keys: &Keys<'_>) -> Result<PushedMany> {
    let pushed: BTreeSet<i64> = tx
        .opening
        .repeat
        .iter()
        .filter(|did| did.kind == "message.pushed")
        .filter_map(|did| did.resource.strip_prefix("message/")?.parse().ok())
        .collect();
    let ids: Vec<i64> = pushed.iter().copied().collect();
    let mut batch = Batch::new();
    let known = batch.add(by_key(keys)?);
    let own = batch.add(by_keys!(read, ids.as_slice(), columns!("where message.id"), ""));
    let mut answers = tx.send(batch).await?;
    let own = Record::read_all(answers.take(own).rows)?;
    let mut own: BTreeMap<i64, Record> = own.into_iter().map(|message| (message.id, message)).collect();
    if own.len() < pushed.len() {
        return Err(Error::new(
            Code::AlreadyFinished,
            "the messages that this request pushed have been removed",
        )
        .hint("they were pushed and finished: do not push them again"));
    }
    let mut known = find(answers.take(known).rows, keys)?;
    let existing = known.values().map(|message| message.id).filter(|id| !pushed.contains(id)).collect();
    for message in known.values() {
        own.remove(&message.id);
    }
    let messages = (0..items.len())
        .filter_map(|i| known.remove(&i).or_else(|| own.pop_first().map(|(_, message)| message)));
    Ok(PushedMany { messages: messages.map(|message| message.view(tx.now)).collect(), existing })
}
