//! Exports channels, posts and cursors.

use super::{Read, cut, name, that_fit, unknown_place};
use crate::{
    clock::Time,
    db::{Row, Tx, set},
    error::{Error, Result},
    ids::{EXPORTED, exported_id},
    ops::admin::import::{ChannelItem, CursorItem, PostItem},
    params,
};
use serde_json::json;
use std::collections::HashMap;

pub(super) async fn channels(tx: &mut Tx<'_>, after: &str, limit: i64) -> Result<Read<ChannelItem>> {
    let sql =
        "select name, description, creator, created_at from channel where name > ?1 order by name limit ?2";
    let (rows, last) = cut(tx.query(sql, params![after, limit + 1]).await?, limit, name)?;
    let mut items = Vec::with_capacity(rows.len());
    for row in &rows {
        items.push(ChannelItem {
            name: row.get("name")?,
            description: row.get("description")?,
            creator: row.get("creator")?,
            members: Vec::new(),
            created_at: Some(row.get("created_at")?),
        });
    }
    let names = set(items.iter().map(|channel| json!({ "name": channel.name })))?;
    let members = tx
        .query(
            "select channel, agent from reader where member = 1
             and channel in (select value ->> 'name' from json_each(?1)) order by channel, agent",
            params![names],
        )
        .await?;
    let at: HashMap<String, usize> =
        items.iter().enumerate().map(|(i, channel)| (channel.name.clone(), i)).collect();
    for row in &members {
        items[at[&row.get::<String>("channel")?]].members.push(row.get("agent")?);
    }
    Ok((items, last))
}

/// Splits a page key, `CHANNEL/N` or `AGENT/CHANNEL`: names have no slash. An empty key comes before all others.
fn pair(key: &str) -> Result<(&str, &str)> {
    if key.is_empty() { Ok(("", "0")) } else { key.split_once('/').ok_or_else(unknown_place) }
}

/// A post's id in the export. An imported post keeps its original id.
fn post_id(key: Option<String>, n: i64, at: Time) -> String {
    let imported = key.as_deref().and_then(|key| key.strip_prefix(EXPORTED)).map(str::to_owned);
    imported.unwrap_or_else(|| exported_id(n, at))
}

pub(super) async fn posts(tx: &mut Tx<'_>, after: &str, limit: i64) -> Result<Read<PostItem>> {
    let (channel, n) = pair(after)?;
    let n: i64 = n.parse().map_err(|_| unknown_place())?;
    let sizes = "select channel, n, cast(octet_length(body) as bigint) as size from post
                 where (channel, n) > (?1, ?2) order by channel, n limit ?3";
    let (fit, more) = that_fit(tx.query(sizes, params![channel, n, limit + 1]).await?, limit)?;
    let Some(last) = fit.last() else { return Ok((Vec::new(), None)) };
    let (to_channel, to): (String, i64) = (last.get("channel")?, last.get("n")?);
    let rows = tx
        .query(
            "select post.channel, post.n, post.author, post.body, post.mentions, post.idempotency_key, post.at,
               answered.n as answered_n, answered.at as answered_at, answered.idempotency_key as answered_key
             from post left join post as answered on answered.channel = post.channel and answered.n = post.reply_to
             where (post.channel, post.n) > (?1, ?2) and (post.channel, post.n) <= (?3, ?4)
             order by post.channel, post.n",
            params![channel, n, &to_channel, to],
        )
        .await?;
    let item = |row: &Row| {
        let mentions: Option<String> = row.get("mentions")?;
        let mentions = mentions.map_or(Ok(Vec::new()), |list| serde_json::from_str(&list));
        let at: Time = row.get("at")?;
        let answered = match row.get::<Option<i64>>("answered_n")? {
            Some(n) => Some(post_id(row.get("answered_key")?, n, row.get("answered_at")?)),
            None => None,
        };
        Ok(PostItem {
            id: post_id(row.get("idempotency_key")?, row.get("n")?, at),
            channel: row.get("channel")?,
            body: row.get("body")?,
            author: row.get("author")?,
            mentions: mentions.map_err(Error::internal)?,
            reply_to: answered,
            at: Some(at),
        })
    };
    let items = rows.iter().map(item).collect::<Result<_>>()?;
    Ok((items, more.then(|| format!("{to_channel}/{to}"))))
}

/// A cursor names the last read post that still exists. If all read posts are pruned, the cursor is left out.
pub(super) async fn cursors(tx: &mut Tx<'_>, after: &str, limit: i64) -> Result<Read<CursorItem>> {
    let (agent, channel) = pair(after)?;
    let rows = tx
        .query(
            "select reader.agent, reader.channel, post.n, post.at, post.idempotency_key from reader
             join post on post.channel = reader.channel and post.n = (
               select max(n) from post as seen where seen.channel = reader.channel and seen.n <= reader.read_n)
             where (reader.agent, reader.channel) > (?1, ?2) order by reader.agent, reader.channel limit ?3",
            params![agent, channel, limit + 1],
        )
        .await?;
    let key = |row: &Row| Ok(format!("{}/{}", row.get::<String>("agent")?, row.get::<String>("channel")?));
    let (rows, last) = cut(rows, limit, key)?;
    let item = |row: &Row| {
        let at: Time = row.get("at")?;
        Ok(CursorItem {
            agent: row.get("agent")?,
            channel: row.get("channel")?,
            read_until: at,
            read_to: Some(post_id(row.get("idempotency_key")?, row.get("n")?, at)),
        })
    };
    Ok((rows.iter().map(item).collect::<Result<_>>()?, last))
}
