//! Reads the facts that the rules need, for many pairs with a few statements.

use super::{
    rule::{Fanout, Pair, Waker},
    settings::Settings,
    wakeups,
};
use crate::{
    clock::Time,
    db::{Batch, Row, Stmt, Tx, set},
    error::{Error, Result},
    limits::NAME_MAX,
    params,
};
use serde_json::json;
use std::collections::{BTreeSet, HashMap};

/// SQL: the agent of row `agent` is online at time `$now`. It polled lately, or has a live run.
macro_rules! online {
    ($now:literal) => {
        concat!(
            "(agent.left_at is null and (agent.heard_until > ",
            $now,
            " or exists (select 1 from run where run.agent = agent.name and run.ended_at is null and run.expires_at > ",
            $now,
            ")))"
        )
    };
}
pub(crate) use online;

/// PostgreSQL looks up each row of a set by an index, until the end of the transaction. It expects a hundred rows in every set, and
/// would rather read all readers and posts into a hash: 100,000 rows for one post with two readers.
pub(super) fn nested_loops() -> Stmt {
    let sql =
        "select set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)";
    Stmt::read(sql, params![]).only_on_postgres()
}

/// The newest unread posts of a pair that are considered. Older ones are delivered with them.
const POSTS: i64 = 50;

/// An agent in a channel, as its row `reader` has it.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    pub agent: String,
    pub channel: String,
    pub read: i64,
    pub wake: i64,
    pub why: Option<String>,
    pub suppressed: i64,
    /// Its mentions are held by a run, or wait.
    pub has_mentions: bool,
    pub wake_at: Option<Time>,
}

macro_rules! readers {
    ($rest:expr) => {
        concat!(
            "select reader.agent, reader.channel, reader.read_n, reader.wake_n, reader.wake_why, reader.suppressed, reader.wake_at,
               case when reader.run is not null or reader.ready = 1 then 1 else 0 end as has_mentions
             from reader ",
            $rest
        )
    };
}
pub(super) use readers;

impl Reader {
    pub fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            agent: row.get("agent")?,
            channel: row.get("channel")?,
            read: row.get("read_n")?,
            wake: row.get("wake_n")?,
            why: row.get("wake_why")?,
            suppressed: row.get("suppressed")?,
            has_mentions: row.get("has_mentions")?,
            wake_at: row.get("wake_at")?,
        })
    }

    pub fn read_all(rows: &[Row]) -> Result<Vec<Self>> {
        rows.iter().map(Self::read).collect()
    }

    /// The name of the pair in maps.
    pub fn pair(&self) -> (String, String) {
        (self.agent.clone(), self.channel.clone())
    }
}

/// The facts about some pairs.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub pairs: HashMap<(String, String), Pair>,
    pub fanouts: HashMap<String, Fanout>,
}

impl Facts {
    pub fn fanout(&self, root: &str) -> Fanout {
        self.fanouts.get(root).copied().unwrap_or_default()
    }

    pub async fn load(tx: &mut Tx<'_>, readers: &[Reader], settings: &Settings, lock: Roots) -> Result<Self> {
        let rows = set(readers.iter().map(|reader| {
            json!({
                "agent": reader.agent, "channel": reader.channel,
                "after": reader.read.max(reader.wake - POSTS), "to": reader.wake,
                "since": settings.limits(&reader.channel).counted_since(tx.now).0,
            })
        }))?;
        let mut batch = Batch::new();
        batch.add(nested_loops());
        let agents = batch.add(Stmt::read(
            concat!(
                "select distinct item.value ->> 'agent' as name, (
                   select case when agent.wakes_until > ?2 then 1 else 0 end from agent
                   where agent.name = item.value ->> 'agent' and ",
                online!("?2"),
                ") as accepts from json_each(?1) as item"
            ),
            params![rows.clone(), tx.now],
        ));
        let woken = batch.add(Stmt::read(
            "select wakeup.agent, wakeup.channel, wakeup.at from json_each(?1) as item cross join wakeup
             where wakeup.agent = item.value ->> 'agent' and wakeup.channel = item.value ->> 'channel'
             and wakeup.at > cast(item.value ->> 'since' as bigint) order by wakeup.at desc",
            params![rows.clone()],
        ));
        let last = batch.add(Stmt::read(
            "select item.value ->> 'agent' as agent, item.value ->> 'channel' as channel,
               (select wakeup.n from wakeup where wakeup.agent = item.value ->> 'agent'
                and wakeup.channel = item.value ->> 'channel' order by wakeup.n desc limit 1) as n,
               (select 1 from message where message.id = (select wakeup.message from wakeup where wakeup.agent = item.value ->> 'agent'
                and wakeup.channel = item.value ->> 'channel' order by wakeup.n desc limit 1) and message.finished_at is null) as unfinished
             from json_each(?1) as item",
            params![rows.clone()],
        ));
        let posts = batch.add(Stmt::read(
            "select item.value ->> 'agent' as agent, post.channel, post.n, caused.root, caused.depth
             from json_each(?1) as item cross join post
             left join caused on caused.item = 'post/' || post.channel || '/' || post.n
             where post.channel = item.value ->> 'channel' and post.n > cast(item.value ->> 'after' as bigint)
             and post.n <= cast(item.value ->> 'to' as bigint) and post.quiet = 0
             and coalesce(post.author, '') <> item.value ->> 'agent'",
            params![rows],
        ));
        let mut answers = tx.send(batch).await?;
        let online = answers.take(agents).rows;
        let mut accepts = HashMap::<String, bool>::new();
        for row in &online {
            if let Some(takes) = row.get::<Option<i64>>("accepts")? {
                accepts.insert(row.get("name")?, takes == 1);
            }
        }
        let mut facts = Facts::default();
        for reader in readers {
            let pair = Pair {
                online: accepts.contains_key(&reader.agent),
                // A mailbox cannot have the name of every agent.
                accepts: accepts.get(&reader.agent).is_some_and(|takes| *takes)
                    && wakeups::mailbox(&reader.agent).len() <= NAME_MAX,
                busy: reader.has_mentions,
                ..Pair::default()
            };
            facts.pairs.insert(reader.pair(), pair);
        }
        let of = |row: &Row| Ok::<_, Error>((row.get::<String>("agent")?, row.get::<String>("channel")?));
        for row in answers.take(woken).rows {
            if let Some(pair) = facts.pairs.get_mut(&of(&row)?) {
                pair.woken.push(row.get("at")?);
            }
        }
        for row in answers.take(last).rows {
            if let Some(pair) = facts.pairs.get_mut(&of(&row)?) {
                pair.woken_for = row.get::<Option<i64>>("n")?.unwrap_or_default();
                pair.busy |= row.get::<Option<i64>>("unfinished")?.is_some();
            }
        }
        let mut roots = BTreeSet::new();
        for row in answers.take(posts).rows {
            let pair = of(&row)?;
            let waker = waker(&row, &pair.1)?;
            roots.insert(waker.root.clone());
            if let Some(pair) = facts.pairs.get_mut(&pair) {
                pair.wakers.push(waker);
            }
        }
        facts.fanouts = fanouts(tx, roots, settings, lock).await?;
        Ok(facts)
    }
}

/// A post as a cause. A post without a recorded cause starts a chain.
pub(crate) fn waker(row: &Row, channel: &str) -> Result<Waker> {
    let n = row.get("n")?;
    let cause = crate::log::cause::post(channel, n);
    let root: Option<String> = row.get("root")?;
    Ok(Waker {
        n,
        root: root.unwrap_or_else(|| cause.clone()),
        cause,
        depth: row.get::<Option<i64>>("depth")?.unwrap_or_default(),
    })
}

/// Whether the roots are locked until the end of the transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Roots {
    /// Calls that trigger something count the same root one after the other, so that together they do not exceed the limit.
    Locked,
    Read,
}

/// Counts the mentions and wake-ups that these roots triggered within the window, and the wake-ups that wait.
pub(crate) async fn fanouts(
    tx: &mut Tx<'_>,
    roots: BTreeSet<String>,
    settings: &Settings,
    lock: Roots,
) -> Result<HashMap<String, Fanout>> {
    if roots.is_empty() {
        return Ok(HashMap::new());
    }
    let since = Time(tx.now.0 - settings.window().0);
    let rows = set(roots.into_iter().map(|root| json!({ "root": root })))?;
    let mut batch = Batch::new();
    if lock == Roots::Locked {
        // Buckets of roots, because every lock takes a place in a table of PostgreSQL, and a tick may count thousands of roots.
        batch.add(Stmt::lock(
            "select pg_advisory_xact_lock(hashtextextended(current_schema() || ' root ' || bucket, 0)) is null from (
               select distinct hashtextextended(value ->> 'root', 0) & 63 as bucket from json_each(?1)) as buckets
             order by bucket",
            params![rows.clone()],
        ));
    }
    let counted = batch.add(Stmt::read(
        "select item.value ->> 'root' as root,
           (select count(*) from triggered where triggered.root = item.value ->> 'root' and triggered.at > ?2
            and triggered.kind in ('unread_mentions', 'unread_wakeup')) as begun,
           (select min(triggered.at) from triggered where triggered.root = item.value ->> 'root' and triggered.at > ?2
            and triggered.kind in ('unread_mentions', 'unread_wakeup')) as first,
           (select count(*) from wakeup join message on message.id = wakeup.message
            where wakeup.root = item.value ->> 'root'
            and message.finished_at is null and message.attempts = 0) as waiting
         from json_each(?1) as item",
        params![rows, since],
    ));
    let counted = tx.send(batch).await?.take(counted).rows;
    let fanouts = counted.iter().map(|row| {
        let count = row.get::<i64>("begun")? + row.get::<i64>("waiting")?;
        Ok((row.get("root")?, Fanout { count, first: row.get("first")? }))
    });
    fanouts.collect()
}

/// Reads the number of wake-ups that run, or are pending for agents whose polls accept them, as `n`. Agents that are offline do not
/// count. Each part reads one partial index.
pub(super) fn backlog(now: Time) -> Stmt {
    Stmt::read(
        concat!(
            "select count(*) as n from (
               select mailbox, 0 as running from message where ready = 1 and mailbox >= 'wakeups/' and mailbox < 'wakeups0'
               union all
               select mailbox, 1 as running from message where run is not null and mailbox >= 'wakeups/' and mailbox < 'wakeups0'
               union all
               select mailbox, 0 as running from message where ready = 0 and run is null and finished_at is null
               and mailbox >= 'wakeups/' and mailbox < 'wakeups0') as job
             where 1 = (select 1 from agent where agent.name = substr(job.mailbox, 9)
               and (job.running = 1 or agent.wakes_until > ?1) and ",
            online!("?1"),
            ")"
        ),
        params![now],
    )
}
