//! Lanes of strict mailboxes: one message at a time, in order. Whoever puts something into a lane, or finishes
//! something in it, has its lock. (SQLite has one writer at a time, and needs none.)

use crate::{
    db::{Stmt, Value, by_keys, key_set, set},
    error::Result,
    params,
};

/// What a lane is locked by: locks of this kind are shared by all fleets of a database.
macro_rules! lane {
    ($mailbox:literal, $lane:literal) => {
        concat!("hashtextextended(current_schema() || ' ' || ", $mailbox, " || ' ' || ", $lane, ", 1)")
    };
}
pub(super) use lane;

/// The lanes of these messages.
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

/// Those of these messages whose lane another has just now (they came since `lock_next`). Who asks has the messages'
/// rows already, so it must not wait: whoever has the lane may be waiting for a row.
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

/// The lanes of what comes next in these mailboxes, before its rows are locked: those that are free; or, if others have
/// all of them, one, however long that takes. Who waits here has no lane, so nobody can be waiting for it.
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

/// The lanes that these rows (`mailbox`, `lane`) name.
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

/// These messages are finished: in each of their lanes it is the turn of the oldest that is not.
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

/// These messages came back to their lanes: if it is nobody's turn there, it is that of the oldest.
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
