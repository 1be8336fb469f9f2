//! Marks: which members of a channel have unread posts to be looked at, and which agents are offline. Nothing here waits for a row
//! lock: locked rows are left to the next tick.

use super::{facts::Reader, rule::Why};
use crate::{
    clock::{Millis, Time},
    db::{Batch, Row, Stmt, Tx, set},
    error::Result,
    params,
};
use serde_json::json;
use std::collections::BTreeSet;

/// Limits of one tick: channels with new posts, and agents that came back.
const CHANNELS: i64 = 64;
const AGENTS: i64 = 64;

/// The pairs of agent `?1` that wait for its return. `$lock` is empty, or locks the rows. (With `member = 1` PostgreSQL may read
/// the whole index of members.)
macro_rules! parked {
    ($lock:literal) => {
        concat!(
            "select channel from reader where agent = ?1 and member <> 0 and wake_n > read_n and wake_at is null",
            $lock
        )
    };
}
/// Looks again at the pairs of agents that were offline and are back. Returns whether there are more such agents.
pub(super) async fn rearm(tx: &mut Tx<'_>) -> Result<bool> {
    let sql = "select name from agent where asleep = 1 and wakes_until > ?1 order by wakes_until limit ?2
               /*pg for update skip locked*/";
    let rows = tx.query(sql, params![tx.now, AGENTS]).await?;
    let names = rows.iter().map(|row| row.get("name")).collect::<Result<Vec<String>>>()?;
    // Statements per agent, for the same reason as in `mark`.
    let mut batch = Batch::new();
    let slots: Vec<_> = names
        .iter()
        .map(|name| (batch.add(Stmt::read(parked!(""), params![name])), batch.add(lock_parked(name))))
        .collect();
    let mut answers = tx.send(batch).await?;
    let (mut batch, mut is_whole) = (Batch::new(), true);
    for (name, (wanted, locked)) in names.iter().zip(slots) {
        let (wanted, locked) = (answers.take(wanted).rows, answers.take(locked).rows);
        for row in &locked {
            let channel: String = row.get("channel")?;
            let sql = "update reader set wake_at = ?3 where agent = ?1 and channel = ?2";
            batch.add(Stmt::write(sql, params![name, channel, tx.now]));
        }
        if locked.len() == wanted.len() {
            batch.add(Stmt::write("update agent set asleep = 0 where name = ?1", params![name]));
        } else {
            is_whole = false;
        }
    }
    tx.send(batch).await?;
    Ok(names.len() as i64 == AGENTS && is_whole)
}

fn lock_parked(agent: &str) -> Stmt {
    Stmt::read(parked!(" /*pg for update skip locked*/"), params![agent])
}

/// The members of channel `?1` with new posts of others after `?2` and up to `?3`, and the last of those posts. `$lock` is empty, or
/// locks the rows.
macro_rules! unmarked {
    ($lock:literal) => {
        concat!(
            "select reader.agent, (
               select max(post.n) from post where post.channel = ?1 and post.n > ?2 and post.n <= ?3
               and post.quiet = 0 and coalesce(post.author, '') <> reader.agent) as n
             from reader where reader.channel = ?1 and reader.member = 1 and 1 = (
               select 1 from post where post.channel = ?1 and post.n > reader.read_n and post.n > ?2 and post.n <= ?3
               and post.quiet = 0 and coalesce(post.author, '') <> reader.agent limit 1)",
            $lock
        )
    };
}

/// Marks new posts as unread with the members of their channels. A post costs nothing for its readers until then. Returns
/// whether there are more such channels.
pub(super) async fn mark(tx: &mut Tx<'_>) -> Result<bool> {
    let rows = tx
        .query(
            "select name, marked_n, next_n - 1 as last_n from channel
             where marked_n < next_n - 1 order by name limit ?1
             /*pg for update skip locked*/",
            params![CHANNELS],
        )
        .await?;
    // Statements per channel: with a set of them, PostgreSQL without statistics reads the members of every channel.
    let mut batch = Batch::new();
    let mut channels = Vec::with_capacity(rows.len());
    for row in &rows {
        let (channel, after, to): (String, i64, i64) =
            (row.get("name")?, row.get("marked_n")?, row.get("last_n")?);
        let wanted = batch.add(Stmt::read(unmarked!(""), params![&channel, after, to]));
        let lock = unmarked!(" /*pg for update of reader skip locked*/");
        let locked = batch.add(Stmt::read(lock, params![&channel, after, to]));
        channels.push((channel, to, wanted, locked));
    }
    let mut answers = tx.send(batch).await?;
    let (mut batch, mut marks, mut is_whole) = (Batch::new(), Vec::new(), true);
    for (channel, to, wanted, locked) in channels {
        let (wanted, locked) = (answers.take(wanted).rows, answers.take(locked).rows);
        for row in &locked {
            let (agent, n): (String, i64) = (row.get("agent")?, row.get("n")?);
            marks.push(json!({ "agent": agent, "channel": channel, "n": n }));
        }
        if locked.len() == wanted.len() {
            let sql = "update channel set marked_n = ?2 where name = ?1";
            batch.add(Stmt::write(sql, params![channel, to]));
        } else {
            is_whole = false;
        }
    }
    if !marks.is_empty() {
        batch.add(Stmt::write(
            "update reader set wake_at = coalesce(reader.wake_at, ?2), wake_n = cast(item.value ->> 'n' as bigint)
             from json_each(?1) as item
             where reader.agent = item.value ->> 'agent' and reader.channel = item.value ->> 'channel'",
            params![set(marks)?, tx.now],
        ));
    }
    tx.send(batch).await?;
    Ok(rows.len() as i64 == CHANNELS && is_whole)
}

/// A pair whose agent's row is locked by another call is looked at again after this time.
pub(super) const PARK_AGAIN: Millis = Millis::seconds(1);

/// Notes that the agents of these pairs are offline, so that their return is noticed. Returns those whose row another call has locked.
pub(super) async fn park(
    tx: &mut Tx<'_>,
    looked: &[(&Reader, Option<Why>, Option<Time>)],
) -> Result<BTreeSet<String>> {
    let offline = looked.iter().filter(|(_, why, _)| matches!(why, Some(Why::Offline | Why::NotAccepted)));
    let names: BTreeSet<&str> = offline.map(|(reader, ..)| reader.agent.as_str()).collect();
    if names.is_empty() {
        return Ok(BTreeSet::new());
    }
    let names = set(names.into_iter().map(|name| json!({ "name": name })))?;
    let mut batch = Batch::new();
    let known = batch.add(Stmt::read(
        "select name from agent where name in (select value ->> 'name' from json_each(?1))",
        params![names.clone()],
    ));
    let locked = batch.add(Stmt::read(
        "select name from agent where name in (select value ->> 'name' from json_each(?1)) /*pg for no key update skip locked*/",
        params![names],
    ));
    let mut answers = tx.send(batch).await?;
    let names = |rows: Vec<Row>| rows.iter().map(|row| row.get("name")).collect::<Result<BTreeSet<String>>>();
    let (known, locked) = (names(answers.take(known).rows)?, names(answers.take(locked).rows)?);
    tx.one(Stmt::write(
        "update agent set asleep = 1 where name in (select value ->> 'name' from json_each(?1)) and asleep = 0",
        params![set(locked.iter().map(|name| json!({ "name": name })))?],
    ))
    .await?;
    Ok(known.difference(&locked).cloned().collect())
}
