//! Imports posts with their mentions, numbered in the order of the request.

use super::{Import, PostItem, Taken, differs};
use crate::{
    db::{Batch, Row, Stmt, Tx, set},
    error::{Error, Result},
    ids::exported_number,
    limits::{BODY_MAX, check},
    log::Event,
    ops::{
        admin::export::SOURCE,
        channel::{MENTIONS_MAX, not_found},
    },
    params,
    topic::Topic,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};

impl PostItem {
    /// Refuses an item that an import would not accept. `at` is the item's position in the request.
    pub fn check(&self, at: &str) -> Result<()> {
        let field = |name: &str| format!("{at}{name}");
        check::plain_name(&field("channel"), &self.channel)?;
        check::line(&field("body"), &self.body, BODY_MAX)?;
        check::optional_name(&field("author"), self.author.as_deref())?;
        check::range(&field("mentions"), self.mentions.len() as i64, 0, MENTIONS_MAX as i64)?;
        self.mentions.iter().try_for_each(|name| check::plain_name(&field("mentions"), name))
    }

    /// The mentioned agents, without the author: a post does not trigger its own author.
    fn mentioned(&self) -> BTreeSet<&str> {
        let author = self.author.as_deref();
        self.mentions.iter().map(String::as_str).filter(|name| Some(*name) != author).collect()
    }
}

/// A post that already exists.
struct There {
    n: i64,
    body: String,
    author: Option<String>,
}

/// Existing posts, by channel and key.
type Known = HashMap<(String, String), There>;

impl Import {
    pub(super) async fn posts(&self, tx: &mut Tx<'_>) -> Result<Taken> {
        let mut taken = Taken::default();
        if self.posts.is_empty() {
            return Ok(taken);
        }
        let mut next = self.lock_channels(tx).await?;
        let known = self.known_posts(tx).await?;
        let mut new = NewPosts::default();
        for (i, post) in self.posts.iter().enumerate() {
            let key = self.key(&post.id);
            if let Some(there) = known.get(&(post.channel.clone(), key.clone())) {
                let author = |author: &Option<String>| author.clone().unwrap_or_default();
                let body = (there.body != post.body).then(|| "its text differs".to_owned());
                let author = differs("author", &author(&there.author), &author(&post.author));
                taken.there(&post.id, body.into_iter().chain(author).collect());
                continue;
            }
            let Some(next) = next.get_mut(&post.channel) else {
                // A dry run: the import would create this channel.
                taken.imported.push(post.id.clone());
                continue;
            };
            let n = *next;
            let reply_to = match &post.reply_to {
                None => None,
                Some(id) => {
                    let at = (post.channel.clone(), self.key(id));
                    let to = new.numbers.get(&at).copied().or_else(|| known.get(&at).map(|there| there.n));
                    // In a dry run, earlier calls of the same import have written nothing.
                    Some(to.or(self.dry_run.then_some(0)).ok_or_else(|| {
                        let problem =
                            format!("is `{id}`, which is not an earlier post of `{}`", post.channel);
                        Error::invalid(&format!("posts[{i}].reply_to"), problem)
                    })?)
                }
            };
            if new.numbers.insert((post.channel.clone(), key.clone()), n).is_some() {
                return Err(Error::invalid(
                    &format!("posts[{i}].id"),
                    format!("`{}` is given twice", post.id),
                ));
            }
            *next += 1;
            new.push(tx, post, n, reply_to, key);
            taken.imported.push(post.id.clone());
        }
        if !self.dry_run && !new.posts.is_empty() {
            new.write(tx, &next).await?;
        }
        Ok(taken)
    }

    /// The channels' next numbers. The row locks are held until the commit, so that numbers follow the commit order.
    async fn lock_channels(&self, tx: &mut Tx<'_>) -> Result<HashMap<String, i64>> {
        let names: BTreeSet<&str> = self.posts.iter().map(|post| post.channel.as_str()).collect();
        let rows = set(names.iter().map(|name| json!({ "name": name })))?;
        let mut batch = Batch::new();
        batch.add(Stmt::lock(
            "select 1 from channel where name in (select value ->> 'name' from json_each(?1)) order by name for update",
            params![rows.clone()],
        ));
        let next = batch.add(Stmt::read(
            "select name, next_n from channel where name in (select value ->> 'name' from json_each(?1))",
            params![rows],
        ));
        let rows = tx.send(batch).await?.take(next).rows;
        let next = rows.iter().map(|row| Ok((row.get("name")?, row.get("next_n")?)));
        let next = next.collect::<Result<HashMap<String, i64>>>()?;
        let made = |name: &str| self.dry_run && self.channels.iter().any(|channel| channel.name == name);
        match names.iter().find(|name| !next.contains_key(**name) && !made(name)) {
            Some(missing) => {
                let first = self.posts.iter().position(|post| post.channel == **missing).unwrap_or_default();
                Err(not_found(missing).with("field", format!("posts[{first}].channel")))
            }
            None => Ok(next),
        }
    }

    async fn known_posts(&self, tx: &mut Tx<'_>) -> Result<Known> {
        let ids = |post: &PostItem| {
            let ids = std::iter::once(&post.id).chain(&post.reply_to);
            ids.map(|id| json!({ "channel": post.channel, "key": self.key(id) })).collect::<Vec<_>>()
        };
        let rows = tx
            .query(
                "select distinct post.channel, post.idempotency_key, post.n, post.body, post.author
                 from json_each(?1) as item cross join post
                 where post.channel = item.value ->> 'channel' and post.idempotency_key = item.value ->> 'key'",
                params![set(self.posts.iter().flat_map(ids))?],
            )
            .await?;
        let there = |row: &Row| {
            Ok::<_, Error>(There { n: row.get("n")?, body: row.get("body")?, author: row.get("author")? })
        };
        let known =
            rows.iter().map(|row| Ok(((row.get("channel")?, row.get("idempotency_key")?), there(row)?)));
        let mut known = known.collect::<Result<Known>>()?;
        if self.source == SOURCE {
            for row in self.posts_of_this_fleet(tx).await? {
                known
                    .entry((row.get("channel")?, self.key(&row.get::<String>("id")?)))
                    .or_insert(there(&row)?);
            }
        }
        Ok(known)
    }

    /// Posts that were exported from this same fleet, found by number and time.
    async fn posts_of_this_fleet(&self, tx: &mut Tx<'_>) -> Result<Vec<Row>> {
        let ids = |post: &PostItem| {
            let ids = std::iter::once(&post.id).chain(&post.reply_to);
            let numbers = ids.filter_map(|id| exported_number(id).map(|(n, at)| (id, n, at)));
            numbers
                .map(|(id, n, at)| json!({ "channel": post.channel, "id": id, "n": n, "at": at.0 }))
                .collect::<Vec<_>>()
        };
        let sql = "select distinct post.channel, item.value ->> 'id' as id, post.n, post.body, post.author
             from json_each(?1) as item cross join post
             where post.channel = item.value ->> 'channel' and post.n = cast(item.value ->> 'n' as bigint)
             and post.at = cast(item.value ->> 'at' as bigint)
             and coalesce(substr(post.idempotency_key, 1, length(?2)) <> ?2, true)";
        tx.query(sql, params![set(self.posts.iter().flat_map(ids))?, self.key("")]).await
    }
}

/// The rows to write for new posts.
#[derive(Default)]
struct NewPosts {
    posts: Vec<Value>,
    mentions: Vec<Value>,
    /// The last mention of each agent in each channel, and the time of the first.
    readers: BTreeMap<(String, String), (i64, i64)>,
    events: Vec<Event>,
    numbers: HashMap<(String, String), i64>,
}

impl NewPosts {
    fn push(&mut self, tx: &Tx<'_>, post: &PostItem, n: i64, reply_to: Option<i64>, key: String) {
        let at = post.at.map_or(tx.now, |at| at.min(tx.now)).0;
        let mentions = post.mentioned();
        for agent in &mentions {
            self.mentions.push(json!({ "agent": agent, "channel": post.channel, "n": n, "at": at }));
            let reader = self.readers.entry(((*agent).into(), post.channel.clone())).or_insert((n, at));
            *reader = (n, reader.1.min(at));
        }
        self.events.push(Event {
            topic: Some(Topic::Nobody),
            agent: post.author.clone(),
            details: Some(json!({ "n": n, "mentions": mentions, "key": key })),
            ..Event::new("channel.imported", format!("channel/{}", post.channel))
        });
        self.posts.push(json!({
            "channel": post.channel, "n": n, "author": post.author, "body": post.body, "reply_to": reply_to,
            "mentions": (!mentions.is_empty()).then(|| json!(mentions).to_string()), "key": key, "at": at,
        }));
    }

    async fn write(mut self, tx: &mut Tx<'_>, next: &HashMap<String, i64>) -> Result<()> {
        self.events.extend(self.readers.iter().map(|((agent, channel), (n, _))| Event {
            topic: Some(Topic::agent(agent)),
            details: Some(json!({ "n": n })),
            ..Event::new("mentions.posted", format!("mentions/{agent}/{channel}"))
        }));
        let counters = set(next.iter().map(|(name, next)| json!({ "name": name, "next": next })))?;
        let readers = self.readers.iter().map(|((agent, channel), (n, since))| {
            json!({ "agent": agent, "channel": channel, "n": n, "since": since })
        });
        let batch = Batch::from([
            Stmt::write(
                "update channel set next_n = cast(item.value ->> 'next' as bigint), marked_n = cast(item.value ->> 'next' as bigint) - 1 from json_each(?1) as item
                 where channel.name = item.value ->> 'name'",
                params![counters],
            ),
            Stmt::write(
                "insert into post(channel, n, author, body, reply_to, mentions, idempotency_key, at)
                 select value ->> 'channel', cast(value ->> 'n' as bigint), value ->> 'author', value ->> 'body',
                   cast(value ->> 'reply_to' as bigint), value ->> 'mentions', value ->> 'key',
                   cast(value ->> 'at' as bigint)
                 from json_each(?1) order by key",
                params![set(self.posts)?],
            ),
            Stmt::write(
                "insert into mention(agent, channel, n, at)
                 select value ->> 'agent', value ->> 'channel', cast(value ->> 'n' as bigint),
                   cast(value ->> 'at' as bigint)
                 from json_each(?1) order by key",
                params![set(self.mentions)?],
            ),
            Stmt::write(
                "insert into reader(agent, channel, mentioned_n, since, updated_at)
                 select value ->> 'agent', value ->> 'channel', cast(value ->> 'n' as bigint),
                   cast(value ->> 'since' as bigint), cast(?1 as bigint)
                 from json_each(?2) where true order by value ->> 'agent', value ->> 'channel'
                 on conflict (agent, channel) do update set mentioned_n = excluded.mentioned_n,
                   since = coalesce(case when reader.mentioned_n > reader.read_n then reader.since end, excluded.since),
                   updated_at = excluded.updated_at",
                params![tx.now, set(readers)?],
            ),
            Event::insert_many(tx, self.events)?,
        ]);
        tx.send(batch).await?;
        Ok(())
    }
}
