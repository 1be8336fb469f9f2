//! Expired claims on messages: the message goes back, is held or fails.

use super::{
    Replay, Settings, Status,
    lane::lane,
    record::{Record, columns, save},
    settings_of,
};
use crate::{
    clock::Time,
    db::{Stmt, Tx, key_set},
    error::Result,
    lease::{Under, expiry::ITEMS},
    log::Event,
    params,
};

/// The rule. The attempt was counted at the claim and stays counted. But a message that was claimed together with
/// others keeps a last attempt, which it gets alone: so only a message that causes the loss fails.
pub(super) fn rule(message: &Record, settings: &Settings, now: Time) -> (Record, Event) {
    let mut after = Record { updated_at: now, lapsed: message.lapsed + 1, ..message.clone() };
    if message.batch.is_some() && message.max_attempts > 1 {
        after.attempts = message.attempts.min(message.max_attempts - 1);
    }
    let Some(hold) = message.hold.as_ref() else {
        return (after, message.event("message.lapsed", message));
    };
    let why = hold.lost(now);
    let reason = format!("run `{}` went silent: {why}", hold.run);
    after.end_claim("lapse", &[]);
    let kind = match settings.replay {
        Replay::Hold => {
            after.status = Status::Held;
            "message.held"
        }
        Replay::Discard => {
            after.finish(Status::Failed, now);
            after.outcome = Some("discarded".into());
            "message.discarded"
        }
        Replay::Retry if after.attempts < message.max_attempts => {
            after.status = Status::Pending;
            "message.lapsed"
        }
        Replay::Retry => {
            after.finish(Status::Failed, now);
            "message.failed"
        }
    };
    after.failure_reason = Some(match after.status {
        Status::Failed if settings.replay == Replay::Retry => {
            format!("{} attempts were made and lost; the last by {reason}", message.attempts)
        }
        _ => reason,
    });
    let event = after.event(kind, message).details(serde_json::json!({ "reason": why }));
    (after, event)
}

/// The messages of these runs, with their rows and lanes locked. It skips rows and lanes that another transaction has
/// locked. Elsewhere a lane is locked before its messages; here the order does not matter, because nothing waits.
const HELD_BY: &str = columns!(concat!(
    "where message.run in (select cast(value ->> 'k' as bigint) from json_each(?1))
     /*pg and (message.lane is null or pg_try_advisory_xact_lock(",
    lane!("message.mailbox", "message.lane"),
    "))*/
     limit ?2 /*pg for update of message skip locked*/"
));

/// Claims past their own time limit, locked in the same way.
const CAPPED: &str = columns!(concat!(
    "where message.until_at <= ?1
     /*pg and (message.lane is null or pg_try_advisory_xact_lock(",
    lane!("message.mailbox", "message.lane"),
    "))*/
     order by message.until_at limit ?2 /*pg for update of message skip locked*/"
));

/// Expires one batch of the messages that these ended runs hold.
pub(crate) async fn of_runs(tx: &mut Tx<'_>, runs: &[i64]) -> Result<u64> {
    give_back(tx, Stmt::read(HELD_BY, params![key_set(runs.iter().copied()), ITEMS])).await
}

/// Expires one batch of claims past their own time limit.
pub(crate) async fn end_capped(tx: &mut Tx<'_>) -> Result<u64> {
    give_back(tx, Stmt::read(CAPPED, params![tx.now, ITEMS])).await
}

async fn give_back(tx: &mut Tx<'_>, due: Stmt) -> Result<u64> {
    let mut found = Record::read_all(tx.one(due).await?.rows)?;
    found.sort_by_key(|message| message.id);
    Ok(lapse(tx, found).await?.len() as u64)
}

/// Expires these claims. The caller holds the locks of the rows and of their lanes.
pub(super) async fn lapse(tx: &mut Tx<'_>, messages: Vec<Record>) -> Result<Vec<Record>> {
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let settings = settings_of(tx, &messages).await?;
    let usual = Settings::default();
    let (mut changes, mut events) = (Vec::with_capacity(messages.len()), Vec::with_capacity(messages.len()));
    for message in messages {
        let (after, event) = rule(&message, settings.get(&message.mailbox).unwrap_or(&usual), tx.now);
        changes.push((message, after));
        events.push(event);
    }
    save(tx, &changes, Under::Nobody, events).await?;
    Ok(changes.into_iter().map(|(_, after)| after).collect())
}
