//! Messages as expiry would write them now.

use super::{
    Settings,
    lapse::rule,
    record::{Record, columns, state},
    settings_of,
};
use crate::{
    clock::Time,
    db::{Batch, Stmt, Tx, by_keys, key_set},
    error::Result,
    lease::overdue::Overdue,
    params,
};
use std::collections::HashMap;

/// These messages as expiry would write them now. Changes of their lanes' order are left out; see [`overdue`].
pub(crate) async fn now(tx: &mut Tx<'_>, messages: Vec<Record>) -> Result<Vec<Record>> {
    let lost: Vec<Record> = messages.iter().filter(|message| message.is_lost(tx.now)).cloned().collect();
    let settings = if lost.is_empty() { HashMap::new() } else { settings_of(tx, &lost).await? };
    Ok(messages.into_iter().map(|message| of(message, &settings, tx.now)).collect())
}

fn of(message: Record, settings: &HashMap<String, Settings>, now: Time) -> Record {
    let usual = Settings::default();
    let message = match message.is_lost(now) {
        true => {
            let settings = settings.get(&message.mailbox).unwrap_or(&usual);
            Record { overdue: true, ..rule(&message, settings, now).0 }
        }
        false => message,
    };
    Record { delayed_until: message.delayed_until.filter(|until| *until > now), ..message }
}

/// Messages of runs whose lease has expired. The runs are found first.
const OF_EXPIRED_RUNS: &str = concat!(
    state!(),
    "run.key as run_key, run.name as run_name, run.agent as run_agent,
       run.expires_at as run_expires_at, run.ended_at as run_ended_at
     from run cross join message
     where run.ended_at is null and run.expires_at <= ?2 and message.run = run.key
     and (cast(?1 as text) is null or message.mailbox = ?1)"
);

/// Messages of runs that ended.
const OF_ENDED_RUNS: &str = concat!(
    state!(),
    "run.key as run_key, run.name as run_name, run.agent as run_agent,
       run.expires_at as run_expires_at, run.ended_at as run_ended_at
     from run cross join message
     where run.ended_at is not null and run.settled = 0 and message.run = run.key
     and (cast(?1 as text) is null or message.mailbox = ?1)"
);

/// Messages, of one mailbox or of all, whose claim has expired; and those that are next in a lane where one of them
/// fails.
pub(crate) async fn overdue(tx: &mut Tx<'_>, mailbox: Option<&str>) -> Result<Overdue<Record>> {
    if !tx.opening.due.is_due(tx.now) {
        return Ok(Overdue::default());
    }
    let batch = Batch::from([
        Stmt::read(OF_EXPIRED_RUNS, params![mailbox, tx.now]),
        Stmt::read(OF_ENDED_RUNS, params![mailbox]),
        Stmt::read(
            columns!("where (cast(?1 as text) is null or message.mailbox = ?1) and message.until_at <= ?2"),
            params![mailbox, tx.now],
        ),
    ]);
    let rows = tx.send(batch).await?.into_rows().collect();
    let lost = now(tx, Record::read_all(rows)?).await?;
    let next = turns(tx, &lost).await?;
    Ok(lost.into_iter().chain(next).collect())
}

/// The messages that are next in the lanes of the finished ones, as `lane::next` would write them.
async fn turns(tx: &mut Tx<'_>, messages: &[Record]) -> Result<Vec<Record>> {
    let gone = messages.iter().filter(|message| message.lane.is_some() && message.phase.is_finished());
    let gone: Vec<i64> = gone.map(|message| message.id).collect();
    if gone.is_empty() {
        return Ok(Vec::new());
    }
    let next = by_keys!(read,
        gone.as_slice(),
        columns!(
            "where message.behind = 1 and message.id in (
               select (select next.id from message as next where next.mailbox = gone.mailbox and next.lane = gone.lane
                 and next.lane is not null and next.finished_at is null
                 and next.id not in (select cast(value ->> 'k' as bigint) from json_each(?2)) order by next.id limit 1)
               from message as gone where gone.id"
        ),
        ")",
        key_set(gone.iter().copied())
    );
    let next = Record::read_all(tx.one(next).await?.rows)?;
    Ok(now(tx, next).await?.into_iter().map(|message| Record { behind: false, ..message }).collect())
}
