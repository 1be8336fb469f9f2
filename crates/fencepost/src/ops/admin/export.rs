mod mail;
mod talk;
mod tasks;

use super::import::{
    AgentItem, BoardItem, ChannelItem, CursorItem, MailItem, MailboxItem, PostItem, RouteItem,
};
use crate::{
    caller::Access,
    db::{Row, Tx, set},
    engine::op::{OnRetry, Op, erased},
    error::{Error, Result},
    limits::check,
    ops::{
        agent::{self, STRAND},
        mail::Replay,
        nouns, route, task,
    },
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Export the whole fleet, a page at a time, as items for `task/import` and `admin/import`. Each item is consistent in
/// itself; other calls may write between pages. Not exported: keys, runs, claims, locks, the effects of `once/begin`,
/// request ids and the log.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Export {
    /// The `next` of the previous page.
    #[serde(default)]
    pub after: Option<String>,
    /// At most this many items (default 200, at most 1000), and fewer if they are long.
    #[serde(default)]
    pub limit: Option<i64>,
    /// Only these boards and their tasks, and nothing else.
    #[serde(default)]
    pub boards: Vec<String>,
}

/// One page: items of one kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ExportPage")]
pub struct Page {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentItem>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<ChannelItem>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub posts: Vec<PostItem>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cursors: Vec<CursorItem>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteItem>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub boards: Vec<BoardItem>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<task::import::Item>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mailboxes: Vec<MailboxItem>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mail: Vec<MailItem>,
    /// On the last page: the highest fence that was issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<i64>,
    /// `after` of the next page; missing on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The `source` of exported items in `admin/import`.
pub const SOURCE: &str = "fencepost";

/// Limit on the bytes of long texts in one page, except for a page with a single item.
const PAGE_BYTES: i64 = 1024 * 1024;

/// The kinds of items, in the order in which they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Agents,
    Channels,
    Posts,
    Cursors,
    Routes,
    Boards,
    Tasks,
    Mailboxes,
    Mail,
}

impl Part {
    const ALL: &[Part] = &[
        Part::Agents,
        Part::Channels,
        Part::Posts,
        Part::Cursors,
        Part::Routes,
        Part::Boards,
        Part::Tasks,
        Part::Mailboxes,
        Part::Mail,
    ];
    const OF_BOARDS: &[Part] = &[Part::Boards, Part::Tasks];

    fn as_str(self) -> &'static str {
        match self {
            Part::Agents => "agents",
            Part::Channels => "channels",
            Part::Posts => "posts",
            Part::Cursors => "cursors",
            Part::Routes => "routes",
            Part::Boards => "boards",
            Part::Tasks => "tasks",
            Part::Mailboxes => "mailboxes",
            Part::Mail => "mail",
        }
    }
}

/// The items of a page, and the key of the last of them if there may be more.
type Read<T> = (Vec<T>, Option<String>);

impl Op for Export {
    const NAME: &'static str = "admin/export";
    /// It reads every table.
    const ACCESS: Access = Access::Admin;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Page;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Page> {
        let limit = self.limit.unwrap_or(200);
        check::range("limit", limit, 1, 1000)?;
        check::range("boards", self.boards.len() as i64, 0, 1000)?;
        self.boards.iter().try_for_each(|name| check::plain_name("boards", name))?;
        let parts = if self.boards.is_empty() { Part::ALL } else { Part::OF_BOARDS };
        let (at, after) = self.place(parts)?;
        let mut page = Page::default();
        let last;
        match parts[at] {
            Part::Agents => (page.agents, last) = agents(tx, after, limit).await?,
            Part::Channels => (page.channels, last) = talk::channels(tx, after, limit).await?,
            Part::Posts => (page.posts, last) = talk::posts(tx, after, limit).await?,
            Part::Cursors => (page.cursors, last) = talk::cursors(tx, after, limit).await?,
            Part::Routes => (page.routes, last) = routes(tx).await?,
            Part::Boards => (page.boards, last) = boards(tx, after, limit, &self.boards).await?,
            Part::Tasks => (page.tasks, last) = tasks::tasks(tx, after, limit, &self.boards).await?,
            Part::Mailboxes => (page.mailboxes, last) = mailboxes(tx, after, limit).await?,
            Part::Mail => (page.mail, last) = mail::messages(tx, after, limit).await?,
        }
        page.next = match last {
            Some(key) => Some(format!("{}:{key}", parts[at].as_str())),
            None => parts.get(at + 1).map(|next| next.as_str().to_owned()),
        };
        if page.next.is_none() {
            page.floor = Some(tx.one(nouns().highest_fence()).await?.rows[0].get("fence")?);
        }
        Ok(page)
    }
}

impl Export {
    /// The part to read, and the key to start after.
    fn place(&self, parts: &[Part]) -> Result<(usize, &str)> {
        let Some(after) = &self.after else { return Ok((0, "")) };
        let (name, key) = after.split_once(':').unwrap_or((after, ""));
        let part = parts.iter().position(|part| part.as_str() == name);
        part.map(|part| (part, key)).ok_or_else(unknown_place)
    }
}

fn unknown_place() -> Error {
    Error::invalid("after", "is not the `next` of a page").hint("leave it out for the first page")
}

/// The number in a page key. An empty key comes before all others.
fn number(key: &str) -> Result<i64> {
    if key.is_empty() { Ok(0) } else { key.parse().map_err(|_| unknown_place()) }
}

/// Drops the extra row that was read to see if there are more. Returns the rows, and the last key if there are more.
fn cut(mut rows: Vec<Row>, limit: i64, key: impl Fn(&Row) -> Result<String>) -> Result<Read<Row>> {
    let more = rows.len() as i64 > limit;
    rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let last = rows.last().filter(|_| more).map(key).transpose()?;
    Ok((rows, last))
}

/// As many of these rows as fit by their `size`, and at least one.
fn that_fit(rows: Vec<Row>, limit: i64) -> Result<(Vec<Row>, bool)> {
    let (found, mut sum, mut fit) = (rows.len(), 0, Vec::new());
    for row in rows {
        sum += row.get::<i64>("size")?;
        if fit.len() as i64 == limit || (sum > PAGE_BYTES && !fit.is_empty()) {
            break;
        }
        fit.push(row);
    }
    let more = fit.len() < found;
    Ok((fit, more))
}

fn name(row: &Row) -> Result<String> {
    row.get("name")
}

async fn agents(tx: &mut Tx<'_>, after: &str, limit: i64) -> Result<Read<AgentItem>> {
    let sql = agent::agents!("where name > ?1 order by name limit ?2");
    let (rows, last) = cut(tx.query(sql, params![after, limit + 1]).await?, limit, name)?;
    let now = tx.now;
    let item = |row: &Row| {
        let agent = agent::Record::read(row)?;
        Ok(AgentItem {
            paused: agent.paused(now).cloned(),
            name: agent.name,
            role: agent.role,
            capabilities: agent.capabilities,
            max_concurrent: agent.max_concurrent,
            strand_ms: Some(agent.strand).filter(|strand| *strand != STRAND),
            joined_at: Some(agent.joined_at),
            left_at: agent.left_at,
        })
    };
    Ok((rows.iter().map(item).collect::<Result<_>>()?, last))
}

/// Routes are few enough for one page.
async fn routes(tx: &mut Tx<'_>) -> Result<Read<RouteItem>> {
    Ok((route::in_force(tx).await?.into_iter().map(RouteItem::of).collect(), None))
}

async fn boards(tx: &mut Tx<'_>, after: &str, limit: i64, only: &[String]) -> Result<Read<BoardItem>> {
    let sql = "select name, next_n, created_at from board
               where name > ?1 and (?3 = 0 or name in (select value ->> 'name' from json_each(?4)))
               order by name limit ?2";
    let rows = tx.query(sql, params![after, limit + 1, !only.is_empty(), names(only)?]).await?;
    let (rows, last) = cut(rows, limit, name)?;
    let item = |row: &Row| {
        let (name, next, created_at) = (row.get("name")?, row.get("next_n")?, Some(row.get("created_at")?));
        Ok(BoardItem { name, next, created_at })
    };
    Ok((rows.iter().map(item).collect::<Result<_>>()?, last))
}

fn names(names: &[String]) -> Result<crate::db::Value> {
    set(names.iter().map(|name| json!({ "name": name })))
}

/// Reads the columns as stored: settings that were never set are left out.
async fn mailboxes(tx: &mut Tx<'_>, after: &str, limit: i64) -> Result<Read<MailboxItem>> {
    let sql = "select name, in_order, paused, ttl_ms, max_attempts, backoff_ms, replay, retain_ms, retain_count, created_at
               from mailbox where name > ?1 order by name limit ?2";
    let (rows, last) = cut(tx.query(sql, params![after, limit + 1]).await?, limit, name)?;
    let item = |row: &Row| {
        let replay: Option<String> = row.get("replay")?;
        Ok(MailboxItem {
            name: row.get("name")?,
            strict: row.get("in_order")?,
            paused: row.get("paused")?,
            ttl_ms: row.get("ttl_ms")?,
            max_attempts: row.get("max_attempts")?,
            backoff_ms: row.get("backoff_ms")?,
            replay: replay.and_then(|text| Replay::read(&text)),
            retain_ms: row.get("retain_ms")?,
            retain_count: row.get("retain_count")?,
            created_at: Some(row.get("created_at")?),
        })
    };
    Ok((rows.iter().map(item).collect::<Result<_>>()?, last))
}
