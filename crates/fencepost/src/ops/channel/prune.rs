//! Removes old posts and their mentions, oldest first in each channel.
//!
//! A channel's last post stays, and so does every post from the first one that a member, or a mentioned agent, has not
//! read: posts have no gaps, and no agent misses one. Nothing is kept for an agent that was offline for as long. Its
//! reader row stays: without it all posts would be unread again.

use crate::{
    db::{Batch, Stmt, Tx, set},
    error::Result,
    params,
};
use serde_json::json;

/// Removes one batch and returns its size.
pub(crate) async fn prune(tx: &mut Tx<'_>, before: i64, most: i64) -> Result<u64> {
    let mut batch = Batch::new();
    batch.add(Stmt::write(
        "update reader set read_n = mentioned_n, since = null where (agent, channel) in (
           select agent, channel from reader where run is null and mentioned_n > read_n
           and exists (select 1 from agent where agent.name = reader.agent and heard_until < ?1)
           /*pg for update skip locked*/)",
        params![before],
    ));
    let oldest = batch.add(Stmt::read(
            "select post.channel, post.n from (
               select name, (select min(n) from (
                 select channel.next_n - 1 as n
                 union all
                 select n from (select n from post where post.channel = channel.name and at >= ?1 order by n limit 1) as young
                 union all
                 select min(read_n) + 1 as n from reader
                 where reader.channel = channel.name and (member = 1 or mentioned_n > read_n)
                 and not exists (select 1 from agent where agent.name = reader.agent and heard_until < ?1)
               ) as kept) as kept_from
               from channel) as cut
             join post on post.channel = cut.name and post.n < cut.kept_from
             order by post.channel, post.n limit ?2",
            params![before, most],
        ));
    let rows = tx.send(batch).await?.take(oldest).rows;
    if rows.is_empty() {
        return Ok(0);
    }
    let gone = rows
        .iter()
        .map(|row| Ok(json!({ "channel": row.get::<String>("channel")?, "n": row.get::<i64>("n")? })));
    let gone = set(gone.collect::<Result<Vec<_>>>()?)?;
    let mut batch = Batch::new();
    batch.add(Stmt::write(
        "delete from mention where (channel, n) in (
           select value ->> 'channel', cast(value ->> 'n' as bigint) from json_each(?1))",
        params![gone.clone()],
    ));
    let posts = batch.add(Stmt::write(
        "delete from post where (channel, n) in (
           select value ->> 'channel', cast(value ->> 'n' as bigint) from json_each(?1))",
        params![gone],
    ));
    Ok(tx.send(batch).await?.affected(posts))
}
