//! Lanes of strict mailboxes: one message at a time, in order. Whoever puts something into a lane, or finishes
//! something in it, has its lock. (SQLite has one writer at a time, and needs none.)

use crate::{
    params,
    tx::{Stmt, Value, by_keys, key_set},
};

/// The lanes of these messages.
pub(super) fn lock_of(messages: &[i64]) -> Stmt {
    Stmt::lock(
        "select pg_advisory_xact_lock(lane) is null from (
           select distinct hashtextextended(mailbox || ' ' || lane, 1) as lane from message
           where id in (select cast(value ->> 'k' as bigint) from json_each(?1)) and lane is not null
           order by 1) as lanes",
        params![key_set(messages.iter().copied())],
    )
}

/// The lanes that these rows (`mailbox`, `lane`) name.
pub(super) fn lock(rows: Value) -> Stmt {
    Stmt::lock(
        "select pg_advisory_xact_lock(lane) is null from (
           select distinct hashtextextended((value ->> 'mailbox') || ' ' || (value ->> 'lane'), 1) as lane
           from json_each(?1) where value ->> 'lane' is not null order by 1) as lanes",
        params![rows],
    )
}

/// These messages are finished: in each of their lanes it is the turn of the oldest that is not.
pub(super) fn next(finished: &[i64]) -> Stmt {
    by_keys!(
        finished,
        "update message set behind = 0 where behind = 1 and id in (
           select min(next.id) from message as gone join message as next
             on next.mailbox = gone.mailbox and next.lane = gone.lane
             and next.lane is not null and next.finished_at is null
           where gone.id",
        "group by gone.mailbox, gone.lane)"
    )
}

/// These messages came back to their lanes: if it is nobody's turn there, it is that of the oldest.
pub(super) fn resume(back: &[i64]) -> Stmt {
    by_keys!(
        back,
        "update message set behind = 0 where id in (
           select min(next.id) from message as came join message as next
             on next.mailbox = came.mailbox and next.lane = came.lane
             and next.lane is not null and next.finished_at is null
           where came.id",
        "group by next.mailbox, next.lane having max(1 - next.behind) = 0)"
    )
}
