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
use std::collections::{BTreeMap, BTreeSet};

/// Limits of one tick: channels with new posts, and agents that came back.
const CHANNELS: i64 = 64;
const AGENTS: i64 = 64;

/// Looks again at the pairs of agents that were offline and are back. Returns whether there are more such agents.
pub(super) async fn rearm(tx: &mut Tx<'_>) -> Result<bool> {
    let sql = "select name from agent where asleep = 1 and wakes_until > ?1 order by wakes_until limit ?2
               /*pg for update skip locked*/";
    let rows = tx.query(sql, params![tx.now, AGENTS]).await?;
    if rows.is_empty() {
        return Ok(false);
    }
    let names = rows.iter().map(|row| Ok(json!({ "name": row.get::<String>("name")? })));
    let names = set(names.collect::<Result<Vec<_>>>()?)?;
    let mut batch = Batch::new();
    let wanted = batch.add(Stmt::read(PARKED, params![names.clone()]));
    let locked = batch.add(Stmt::read(LOCK_PARKED, params![names.clone()]));
    let mut answers = tx.send(batch).await?;
    let (wanted, locked) = (answers.take(wanted).rows, answers.take(locked).rows);
    let pairs = locked.iter().map(|row| {
        Ok(json!({ "agent": row.get::<String>("agent")?, "channel": row.get::<String>("channel")? }))
    });
    let mut batch = Batch::new();
    batch.add(Stmt::write(
        "update reader set wake_at = ?2 from json_each(?1) as item
         where reader.agent = item.value ->> 'agent' and reader.channel = item.value ->> 'channel'",
        params![set(pairs.collect::<Result<Vec<_>>>()?)?, tx.now],
    ));
    // Rows that another call has locked are left to the next tick.
    if locked.len() == wanted.len() {
        batch.add(Stmt::write(
            "update agent set asleep = 0 where name in (select value ->> 'name' from json_each(?1))",
            params![names],
        ));
    }
    tx.send(batch).await?;
    Ok(rows.len() as i64 == AGENTS && locked.len() == wanted.len())
}

/// The pairs of these agents (`?1`) that wait for their return.
const PARKED: &str =
    "select agent, channel from reader where agent in (select value ->> 'name' from json_each(?1))
     and member = 1 and wake_n > read_n and wake_at is null";
const LOCK_PARKED: &str =
    "select agent, channel from reader where agent in (select value ->> 'name' from json_each(?1))
     and member = 1 and wake_n > read_n and wake_at is null /*pg for update skip locked*/";

/// The members of these channels (`?1`) with new posts of others, and the last of those posts. `$lock` is empty, or locks the rows.
macro_rules! unmarked {
    ($lock:literal) => {
        concat!(
            "select reader.agent, reader.channel, (
               select max(post.n) from post where post.channel = reader.channel
               and post.n > cast(item.value ->> 'after' as bigint) and post.n <= cast(item.value ->> 'to' as bigint)
               and post.quiet = 0 and coalesce(post.author, '') <> reader.agent) as n
             from json_each(?1) as item cross join reader
             where reader.channel = item.value ->> 'channel' and reader.member = 1 and exists (
               select 1 from post where post.channel = reader.channel and post.n > reader.read_n
               and post.n > cast(item.value ->> 'after' as bigint) and post.n <= cast(item.value ->> 'to' as bigint)
               and post.quiet = 0 and coalesce(post.author, '') <> reader.agent)",
            $lock
        )
    };
}

/// Marks new posts as unread with the members of their channels. A post costs nothing for its readers until then. Returns
/// whether there are more such channels.
pub(super) async fn mark(tx: &mut Tx<'_>) -> Result<bool> {
    let rows = tx
        .query(
            "select name, marked_n, next_n - 1 as last_n from channel where next_n - 1 > marked_n order by name limit ?1
             /*pg for update skip locked*/",
            params![CHANNELS],
        )
        .await?;
    if rows.is_empty() {
        return Ok(false);
    }
    let channels = rows.iter().map(|row| {
        let (after, to): (i64, i64) = (row.get("marked_n")?, row.get("last_n")?);
        Ok(json!({ "channel": row.get::<String>("name")?, "after": after, "to": to }))
    });
    let channels = channels.collect::<Result<Vec<_>>>()?;
    let given = set(&channels)?;
    let mut batch = Batch::new();
    let wanted = batch.add(Stmt::read(unmarked!(""), params![given.clone()]));
    let locked = batch.add(Stmt::read(unmarked!(" /*pg for update of reader skip locked*/"), params![given]));
    let mut answers = tx.send(batch).await?;
    let (wanted, locked) = (answers.take(wanted).rows, answers.take(locked).rows);
    let mut left = BTreeMap::<String, i64>::new();
    for row in &wanted {
        *left.entry(row.get("channel")?).or_default() += 1;
    }
    let mut marks = Vec::with_capacity(locked.len());
    for row in &locked {
        let channel: String = row.get("channel")?;
        *left.entry(channel.clone()).or_default() -= 1;
        marks.push(
            json!({ "agent": row.get::<String>("agent")?, "channel": channel, "n": row.get::<i64>("n")? }),
        );
    }
    // Channels with a row that another call has locked are left to the next tick.
    let marked = channels.iter().filter(|channel| {
        channel["channel"].as_str().is_none_or(|name| left.get(name).is_none_or(|left| *left <= 0))
    });
    let marked: Vec<_> = marked.collect();
    let is_whole = marked.len() == channels.len();
    tx.send(Batch::from([
        Stmt::write(
            "update reader set wake_at = coalesce(reader.wake_at, ?2), wake_n = cast(item.value ->> 'n' as bigint)
             from json_each(?1) as item
             where reader.agent = item.value ->> 'agent' and reader.channel = item.value ->> 'channel'",
            params![set(marks)?, tx.now],
        ),
        Stmt::write(
            "update channel set marked_n = cast(item.value ->> 'to' as bigint) from json_each(?1) as item
             where channel.name = item.value ->> 'channel'",
            params![set(marked)?],
        ),
    ]))
    .await?;
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
