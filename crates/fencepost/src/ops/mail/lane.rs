//! Lanes of strict mailboxes: messages in order, one at a time. Adding a message to a lane, or finishing one, needs the
//! lane's lock. (SQLite has one writer at a time and needs no lock.)

use crate::{
    db::{Stmt, Value, by_keys, key_set, set},
    error::Result,
    params,
};

/// The key of a lane's advisory lock. It includes the schema, because all fleets of a database share these locks.
macro_rules! lane {
    ($mailbox:literal, $lane:literal) => {
        concat!("hashtextextended(current_schema() || ' ' || ", $mailbox, " || ' ' || ", $lane, ", 1)")
    };
}
pub(super) use lane;

/// Locks the lanes of these messages.
pub(super) fn lock_of(messages: &[i64]) -> Stmt {
    Stmt::lock(
        concat!(
            "select pg_advisory_xact_lock(lane) is null from (
               select distinct ",
            lane!("mailbox", "lane"),
            " as lane from message
               where id in (select cast(value ->> 'k' as bigint) from json_each(?1)) and lane is not null
               order by 1) as lanes"
        ),
        params![key_set(messages.iter().copied())],
    )
}

/// The messages whose lane another transaction has locked (they became next after `lock_next`). The caller already
/// holds the message rows, so it must not wait: the lane's owner may be waiting for one of these rows.
pub(super) fn taken(messages: &[i64]) -> Stmt {
    Stmt::lock(
        concat!(
            "select id from (
               select id, pg_try_advisory_xact_lock(",
            lane!("mailbox", "lane"),
            ") as got from message
               where id in (select cast(value ->> 'k' as bigint) from json_each(?1)) and lane is not null) as lanes
             where not got"
        ),
        params![key_set(messages.iter().copied())],
    )
}

/// Locks the lanes of the next messages of these mailboxes, before the message rows: all lanes that are free, or, if
/// none is free, one of them after waiting for it. A waiting caller holds no lane, so it cannot cause a deadlock.
pub(super) fn lock_next(mailboxes: &[&str], count: i64) -> Result<Stmt> {
    let mailboxes = set(mailboxes.iter().map(|name| serde_json::json!({ "name": name })))?;
    Ok(Stmt::lock(
        concat!(
            "select pg_advisory_xact_lock(min(lane)) is null from (
               select lane, pg_try_advisory_xact_lock(lane) as got from (
                 select distinct ",
            lane!("mailbox", "lane"),
            " as lane from (
                   select next.mailbox, next.lane from mailbox, lateral (
                     select message.mailbox, message.lane, message.priority, message.id from message
                     where message.ready = 1 and message.mailbox = mailbox.name
                     order by message.priority desc, message.id limit ?2) as next
                   where mailbox.in_order = 1 and mailbox.paused is null
                   and mailbox.name in (select value ->> 'name' from json_each(?1))
                   order by next.priority desc, next.id limit ?2) as next) as lanes) as tried
             having count(*) > 0 and not bool_or(got)"
        ),
        params![mailboxes, count],
    ))
}

/// Locks the lanes named by these rows (`mailbox`, `lane`).
pub(super) fn lock(rows: Value) -> Stmt {
    Stmt::lock(
        concat!(
            "select pg_advisory_xact_lock(lane) is null from (
               select distinct ",
            lane!("(value ->> 'mailbox')", "(value ->> 'lane')"),
            " as lane
               from json_each(?1) where value ->> 'lane' is not null order by 1) as lanes"
        ),
        params![rows],
    )
}

/// After these messages finished: makes the oldest unfinished message of each of their lanes the first.
pub(super) fn next(finished: &[i64]) -> Stmt {
    by_keys!(write,
        finished,
        "update message set behind = 0 where behind = 1 and id in (
           select (select next.id from message as next where next.mailbox = gone.mailbox and next.lane = gone.lane
             and next.lane is not null and next.finished_at is null order by next.id limit 1)
           from message as gone where gone.id",
        ")"
    )
}

/// After these messages came back to their lanes: where no message is first, makes the oldest unfinished one first.
pub(super) fn resume(back: &[i64]) -> Stmt {
    by_keys!(write,
        back,
        "update message set behind = 0 where id in (
           select (select next.id from message as next where next.mailbox = came.mailbox and next.lane = came.lane
             and next.lane is not null and next.finished_at is null order by next.id limit 1)
           from message as came where came.id",
        "and not exists (select 1 from message as turn where turn.mailbox = came.mailbox
             and turn.lane = came.lane and turn.lane is not null and turn.finished_at is null and turn.behind = 0))"
    )
}
