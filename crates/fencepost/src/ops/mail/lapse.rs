//! Expired claims on messages: the message goes back, is held or fails.

use super::{
    Phase, Replay, Settings,
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
    let Some(hold) = message.hold() else {
        return (after, message.event("message.lapsed", message));
    };
    let why = hold.lost(now);
    let reason = format!("run `{}` went silent: {why}", hold.run);
    let (kind, next, reason) = match settings.replay {
        Replay::Hold => ("message.held", Phase::SetAside, reason),
        Replay::Discard => {
            after.outcome = Some("discarded".into());
            ("message.discarded", Phase::Failed(now), reason)
        }
        Replay::Retry if after.attempts < message.max_attempts => ("message.lapsed", Phase::Pending, reason),
        Replay::Retry => {
            let reason = format!("{} attempts were made and lost; the last by {reason}", message.attempts);
            ("message.failed", Phase::Failed(now), reason)
        }
    };
    after.end_claim("lapse", &[], next);
    after.failure_reason = Some(reason);
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
pub(crate) async fn at_limit(tx: &mut Tx<'_>) -> Result<u64> {
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
    save(tx, &changes, Under::NoClaim, events).await?;
    Ok(changes.into_iter().map(|(_, after)| after).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{lease::Hold, ops::mail::Status};

    #[test]
    fn the_mailbox_says_what_follows_when_a_claim_is_lost() {
        let now = Time(10);
        let held = |attempts, batch| Record {
            attempts,
            batch,
            ..Record::sample(Phase::Processing(Hold::sample("r", 1, now)))
        };
        let (retry, hold, discard) = (Replay::Retry, Replay::Hold, Replay::Discard);
        // Status, event, attempts and outcome after it.
        let cases = [
            (retry, held(1, None), Status::Pending, "message.lapsed", 1, None),
            (retry, held(2, None), Status::Pending, "message.lapsed", 2, None),
            (retry, held(3, None), Status::Failed, "message.failed", 3, None),
            // Lost together with others: it keeps its last attempt.
            (retry, held(3, Some(8)), Status::Pending, "message.lapsed", 2, None),
            (
                retry,
                Record { max_attempts: 1, ..held(1, Some(8)) },
                Status::Failed,
                "message.failed",
                1,
                None,
            ),
            (hold, held(1, None), Status::Held, "message.held", 1, None),
            (hold, held(3, None), Status::Held, "message.held", 3, None),
            (discard, held(1, None), Status::Failed, "message.discarded", 1, Some("discarded")),
        ];
        for (replay, before, status, kind, attempts, outcome) in cases {
            let settings = Settings { replay, ..Settings::default() };
            let (after, event) = rule(&before, &settings, now);
            assert_eq!((after.status(), event.kind), (status, kind), "{replay:?} {before:?}");
            assert_eq!((after.attempts, after.lapsed), (attempts, 1), "{replay:?} {before:?}");
            assert_eq!(after.outcome.as_deref(), outcome, "{replay:?} {before:?}");
            assert_eq!((event.run.as_deref(), event.fence), (Some("r"), Some(1)), "{replay:?} {before:?}");
            let last = after.last.as_ref().expect("how the claim ended");
            assert_eq!((last.fence, last.verb.as_str()), (1, "lapse"), "{replay:?} {before:?}");
            let reason = match kind {
                "message.failed" => {
                    format!(
                        "{} attempts were made and lost; the last by run `r` went silent: its lease was over",
                        before.attempts
                    )
                }
                _ => "run `r` went silent: its lease was over".into(),
            };
            assert_eq!(after.failure_reason, Some(reason), "{replay:?} {before:?}");
        }
    }
}
