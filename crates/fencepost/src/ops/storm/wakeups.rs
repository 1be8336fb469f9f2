//! Wake-ups: scheduling them, handing them out, and dropping those whose posts were read.

use super::{
    facts::online,
    rule::{Waker, Why},
    settings::{Setting, Settings},
    state,
};
use crate::{
    clock::{Millis, Time},
    db::{Batch, Stmt, Tx, by_keys, set},
    error::{Error, Result},
    json::Json,
    lease::{Under, run::Holder},
    log::{Event, access::digest},
    ops::{
        channel::{self, reader::Mentions},
        claim::{self, Checkpoint},
        mail::{self, Phase, push_many},
    },
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// The phase of a wake-up's checkpoint after its process has ended well: only the result is still to be posted. The number `to` in
/// its data is the last post that the result answers.
pub const DELIVERED: &str = "delivered";

/// The mailbox of an agent's wake-ups.
pub(crate) fn mailbox(agent: &str) -> String {
    format!("wakeups/{agent}")
}

/// The wake-up of a trigger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Wakeup {
    /// Its message.
    pub message: i64,
    pub channel: String,
    /// The number of this attempt, from 1.
    pub attempt: i64,
    /// Why it is handed out again after its worker was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaimed: Option<Reclaimed>,
    /// The result of the attempt that was lost before it was posted: the data of its checkpoint `delivered`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered: Option<serde_json::Value>,
    /// The lease until its process has started (`start_lease_ms`).
    pub start_lease_ms: Millis,
}

/// How a wake-up goes on after its worker was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reclaimed {
    /// Its work was done: only the result is to be posted.
    CallbackRetry,
    /// It is executed again.
    Timeout,
}

impl Reclaimed {
    pub fn as_str(self) -> &'static str {
        match self {
            Reclaimed::CallbackRetry => "callback_retry",
            Reclaimed::Timeout => "timeout",
        }
    }

    /// The rule. `lapsed` is the message's, at its claim.
    fn of(lapsed: i64, is_delivered: bool) -> Option<Self> {
        match () {
            () if is_delivered => Some(Reclaimed::CallbackRetry),
            () if lapsed > 0 => Some(Reclaimed::Timeout),
            () => None,
        }
    }
}

/// The id of a wake-up in its mailbox: the channel and the last post.
fn key(channel: &str, n: i64) -> String {
    let key = format!("{channel}/{n}");
    if key.len() <= crate::limits::NAME_MAX { key } else { format!("{}/{n}", digest(channel)) }
}

/// Queues wake-ups: one message and one row each.
pub(super) async fn schedule(tx: &mut Tx<'_>, woken: &[(&super::facts::Reader, Waker)]) -> Result<()> {
    if woken.is_empty() {
        return Ok(());
    }
    let items = woken.iter().map(|(reader, waker)| push_many::Item {
        mailbox: mailbox(&reader.agent),
        payload: Some(Json::from(
            json!({ "channel": reader.channel, "from": reader.read + 1, "to": waker.n }),
        )),
        kind: Some("unread_wakeup".into()),
        key: Some(key(&reader.channel, waker.n)),
        ..push_many::Item::default()
    });
    let pushed = push_many::push(tx, items.collect()).await?;
    let rows = woken.iter().zip(&pushed.messages).map(|((reader, waker), message)| {
        json!({
            "agent": reader.agent, "channel": reader.channel, "n": waker.n, "message": message.id,
            "cause": waker.cause, "root": waker.root, "depth": waker.depth,
        })
    });
    tx.one(Stmt::write(
        "insert into wakeup(agent, channel, n, message, at, cause, root, depth)
         select value ->> 'agent', value ->> 'channel', cast(value ->> 'n' as bigint), cast(value ->> 'message' as bigint),
           cast(?2 as bigint), value ->> 'cause', value ->> 'root', cast(value ->> 'depth' as bigint)
         from json_each(?1) order by key",
        params![set(rows)?, tx.now],
    ))
    .await
    .map(drop)
}

/// The event of a suppressed wake-up.
pub(super) fn suppressed(agent: &str, channel: &str, why: Option<Why>, until: Option<Time>) -> Event {
    Event {
        topic: Some(Topic::Nobody),
        details: Some(json!({ "why": why, "until": until })),
        ..Event::new("wakeup.suppressed", format!("mentions/{agent}/{channel}"))
    }
}

/// Why no wake-up is handed out although some wait: too many run.
pub(crate) struct AtCap {
    /// The cap is the agent's own, not the fleet's.
    pub of_agent: bool,
}

/// Claims the agent's next wake-up together with its posts, for an open run. `Err` of the inner result: too many run.
pub(crate) async fn claim_for(
    tx: &mut Tx<'_>,
    agent: &str,
    holder: &Holder,
    run_key: i64,
    max: Option<Millis>,
) -> Result<Result<Option<Delivered>, AtCap>> {
    let mut batch = Batch::new();
    // Polls that take wake-ups wait for each other here: together they must not exceed the caps.
    batch.add(Stmt::lock(
        "select pg_advisory_xact_lock(hashtextextended(current_schema() || ' wakeups', 0)) is null",
        params![],
    ));
    let settings = batch.add(Settings::stmt());
    let running = batch.add(Stmt::read(
        "select count(*) as n, cast(coalesce(sum(case when message.mailbox = ?1 then 1 else 0 end), 0) as bigint) as own from message
         join run on run.key = message.run
         where message.run is not null and message.mailbox >= 'wakeups/' and message.mailbox < 'wakeups0'
         and run.ended_at is null and run.expires_at > ?2",
        params![mailbox(agent), tx.now],
    ));
    let mut answers = tx.send(batch).await?;
    let settings = Settings::read(&answers.take(settings).rows)?;
    let running = answers.take(running).rows;
    let of_agent = running[0].get::<i64>("own")? >= settings.get(Setting::MaxActivePerAgent);
    if of_agent || running[0].get::<i64>("n")? >= settings.get(Setting::MaxActiveGlobal) {
        return Ok(Err(AtCap { of_agent }));
    }
    let found = mail::Record::read_all(tx.one(mail::claim::next_of(&mailbox(agent), 20)).await?.rows)?;
    for message in found {
        let sql = "select channel, n, cause, checkpoint_n from wakeup join message_doc on message_doc.message = wakeup.message
                   where wakeup.message = ?1";
        let Some(row) = tx.query(sql, params![message.id]).await?.into_iter().next() else {
            drop_read(tx, vec![message]).await?;
            continue;
        };
        let (channel, n): (String, i64) = (row.get("channel")?, row.get("n")?);
        let Some(reader) = channel::reader::load_free(tx, agent, &channel).await? else { continue };
        // A result that was delivered is posted, although its posts were read since.
        let is_begun = row.get::<Option<i64>>("checkpoint_n")?.is_some();
        if reader.read >= n && !is_begun {
            drop_read(tx, vec![message]).await?;
            continue;
        }
        let (attempts, lapsed) = (message.attempts + 1, message.lapsed);
        let claimed = mail::claim::take(tx, vec![message], holder, run_key, max, None).await?;
        let Some(claimed) = claimed.into_iter().next() else { continue };
        let mut room = channel::reader::POSTS_SIZE;
        // Posts that the delivered result does not answer stay unread.
        let unread = match delivered_to(&claimed.message) {
            Some(to) => channel::reader::Unread::PostsUpTo(to.max(reader.read)),
            None => channel::reader::Unread::Posts,
        };
        let (hold, reader, given) =
            channel::reader::claim_one(tx, &reader, holder, run_key, max, unread, &mut room).await?;
        let wakeup = Wakeup::of(&claimed.message, channel, lapsed, attempts, &settings);
        if let Some(reclaimed) = wakeup.reclaimed {
            let details =
                json!({ "reason": reclaimed.as_str(), "channel": wakeup.channel, "attempt": attempts });
            let event = Event {
                run: Some(holder.name.clone()),
                agent: Some(agent.to_owned()),
                topic: Some(Topic::Nobody),
                ..Event::new("wakeup.reclaimed", format!("message/{}", wakeup.message)).details(details)
            };
            let mut batch = Batch::from([event.insert(tx)]);
            batch.extend(state::count(&BTreeMap::from([("reclaimed", 1)])));
            tx.send(batch).await?;
        }
        return Ok(Ok(Some(Delivered {
            claims: vec![claimed.claim, hold.claim(&reader.resource())],
            given,
            wakeup,
            cause: row.get("cause")?,
        })));
    }
    Ok(Ok(None))
}

/// The checkpoint of a result that is still to be posted.
fn delivered(message: &mail::Message) -> Option<&Checkpoint> {
    message.checkpoint.as_ref().filter(|checkpoint| checkpoint.phase == DELIVERED)
}

/// The last post that such a result answers.
fn delivered_to(message: &mail::Message) -> Option<i64> {
    delivered(message)?.data.as_ref()?.get("to")?.as_i64()
}

/// A wake-up that was claimed.
pub(crate) struct Delivered {
    pub claims: Vec<claim::Claim>,
    pub given: Mentions,
    pub wakeup: Wakeup,
    pub cause: String,
}

impl Wakeup {
    fn of(message: &mail::Message, channel: String, lapsed: i64, attempts: i64, settings: &Settings) -> Self {
        let delivered = delivered(message);
        Self {
            message: message.id,
            channel,
            attempt: attempts,
            reclaimed: Reclaimed::of(lapsed, delivered.is_some()),
            delivered: delivered.and_then(|checkpoint| checkpoint.data.clone()),
            start_lease_ms: Millis(settings.get(Setting::StartLeaseMs)),
        }
    }

    /// The wake-up of a claimed message, for a repeated poll.
    pub(crate) async fn again(tx: &mut Tx<'_>, message: &mail::Message) -> Result<Option<Self>> {
        let settings = Settings::load(tx).await?;
        let sql =
            "select wakeup.channel, message.lapsed from wakeup join message on message.id = wakeup.message
                   where wakeup.message = ?1";
        let rows = tx.query(sql, params![message.id]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let lapsed = row.get("lapsed")?;
        Ok(Some(Self::of(message, row.get("channel")?, lapsed, message.attempts, &settings)))
    }
}

/// Completes the pair's pending wake-up if its posts were read in another way, unless it has a result to post. It waits for no lock: a poll that has locked such a
/// message sees that its posts were read.
pub(crate) async fn drop_read_by(tx: &mut Tx<'_>, agent: &str, channel: &str, read: i64) -> Result<()> {
    let rows = tx
        .query(
            mail::record::unheld!(
                "where message.id in (select wakeup.message from wakeup where wakeup.agent = ?1 and wakeup.channel = ?2
                   and wakeup.n <= ?3 order by wakeup.n desc limit 1)
                 and message.status = 'pending' and not exists (
                   select 1 from message_doc where message_doc.message = message.id and message_doc.checkpoint_n is not null) /*pg for update of message skip locked*/"
            ),
            params![agent, channel, read],
        )
        .await?;
    drop_read(tx, mail::Record::read_all(rows)?).await
}

async fn drop_read(tx: &mut Tx<'_>, messages: Vec<mail::Record>) -> Result<()> {
    let keys: Vec<i64> = messages.iter().map(|message| message.id).collect();
    if keys.is_empty() {
        return Ok(());
    }
    let changes: Vec<_> = messages
        .into_iter()
        .map(|message| {
            let after = mail::Record {
                phase: Phase::Processed(tx.now),
                outcome: Some("read".into()),
                delayed_until: None,
                updated_at: tx.now,
                ..message.clone()
            };
            (message, after)
        })
        .collect();
    let events = changes.iter().map(|(before, after)| after.event("message.completed", before)).collect();
    mail::record::save(tx, &changes, Under::NoClaim, events).await?;
    // A completed message has no payload.
    tx.one(by_keys!(write, keys.as_slice(), "update message_doc set payload = null where message", ""))
        .await
        .map(drop)
}

/// An agent that is online, as a row or none.
pub(super) fn is_online(agent: &str, now: Time) -> Stmt {
    Stmt::read(
        concat!("select 1 as online from agent where name = ?1 and ", online!("?2")),
        params![agent, now],
    )
}

/// Refuses a channel that does not exist.
pub(super) async fn check_channel(tx: &mut Tx<'_>, name: &str) -> Result<()> {
    crate::limits::check::plain_name("channel", name)?;
    let rows = tx.query("select 1 as found from channel where name = ?1", params![name]).await?;
    rows.first()
        .map(drop)
        .ok_or_else(|| channel::not_found(name))
        .map_err(|e: Error| e.with("field", "channel"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_wake_up_goes_on_where_it_was() {
        for (lapsed, delivered, expected) in [
            (0, false, None),
            (1, false, Some(Reclaimed::Timeout)),
            (1, true, Some(Reclaimed::CallbackRetry)),
            // The result could not be posted, or its worker gave the wake-up back.
            (0, true, Some(Reclaimed::CallbackRetry)),
        ] {
            assert_eq!(Reclaimed::of(lapsed, delivered), expected);
        }
    }

    #[test]
    fn the_id_of_a_wake_up_fits() {
        assert_eq!(key("general", 12), "general/12");
        let long = key(&"c".repeat(128), i64::MAX);
        assert!(long.len() <= crate::limits::NAME_MAX, "{long}");
    }
}
