use super::{PostView, not_found, posts};
use crate::{
    caller::Access,
    db::{Batch, Slot, Stmt, Tx, set},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    limits::{BODY_MAX, NAME_MAX, check},
    log::{Event, cause},
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeSet;

pub(crate) const MENTIONS_MAX: usize = 100;

/// Post to a channel. A post triggers the agents that it mentions: the names in `mentions` or, if that is left out,
/// each `@name` in the text that names an agent or a member of the channel, ignoring case. The reply lists every
/// `@name` that names nobody.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Post {
    pub channel: String,
    pub body: String,
    /// The author of the post.
    #[serde(default)]
    pub author: Option<String>,
    /// The agents that it mentions (default: each `@name` in the text).
    #[serde(default)]
    pub mentions: Option<Vec<String>>,
    /// The number of the post that it answers.
    #[serde(default)]
    pub reply_to: Option<i64>,
    /// The post wakes nobody: its mentions are no triggers, and unread it wakes no member. For results and notices of agents.
    #[serde(default)]
    pub suppress_auto_trigger: bool,
    /// Idempotency key: a second post to the channel with the same key changes nothing and returns the first post.
    #[serde(default)]
    pub key: Option<String>,
    /// Request id: repeating the call with the same id returns the first reply.
    #[serde(default)]
    pub request: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Posted {
    pub post: PostView,
    /// A post with this key already existed.
    pub existing: bool,
    /// Each `@name` in the text that names no agent and no member of the channel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

impl Op for Post {
    const NAME: &'static str = "channel/post";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"channel":"general","body":"@codex-1 the build is green again"}"#;
    type Reply = Posted;
    erased!();
    refuses![LeaseExpired];

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Posted> {
        check::plain_name("channel", &self.channel)?;
        check::line("body", &self.body, BODY_MAX)?;
        check::optional_name("author", self.author.as_deref())?;
        self.key.as_ref().map_or(Ok(()), |key| check::line("key", key, NAME_MAX))?;
        check::request(self.request.as_deref())?;
        let given = self.mentions.as_deref().unwrap_or_default();
        check::range("mentions", given.len() as i64, 0, MENTIONS_MAX as i64)?;
        given.iter().try_for_each(|name| check::plain_name("mentions", name))?;
        let author =
            tx.caller.acting_as("author", self.author.as_deref())?.or_else(|| tx.caller.agent.clone());
        if tx.opening.is_repeat("channel.posted", None)? {
            return self.repeated(tx).await;
        }
        // The row lock is held until the commit, so that numbers follow the commit order.
        let number = tx
            .execute_returning(
                "update channel set next_n = next_n + 1 where name = ?1 returning next_n - 1 as n",
                params![&self.channel],
            )
            .await?;
        let n: i64 = number.first().ok_or_else(|| not_found(&self.channel))?.get("n")?;
        self.check_key(tx).await?;
        if let Some(there) = self.by_key(tx).await? {
            tx.execute("update channel set next_n = next_n - 1 where name = ?1", params![&self.channel])
                .await?;
            return Ok(Posted { post: there, existing: true, unknown: Vec::new() });
        }
        if let Some(reply) = self.reply_to.filter(|reply| !(1..n).contains(reply)) {
            return Err(Error::invalid(
                "reply_to",
                format!("is {reply}, and the channel has {} posts", n - 1),
            ));
        }
        let mut mentions = self.mentioned(tx).await?;
        // A post does not trigger its own author.
        mentions.known.retain(|name| Some(name) != author.as_ref());
        self.write(tx, n, author, mentions).await
    }
}

impl Post {
    /// Keys `wakeup/ID…` are for the answers to a wake-up: only the run that has it may use them.
    async fn check_key(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(id) = self.key.as_ref().and_then(|key| key.strip_prefix("wakeup/")) else { return Ok(()) };
        let id = id.split('/').next().and_then(|id| id.parse::<i64>().ok());
        let held = tx
            .query(
                "select 1 as held from message join run on run.key = message.run
                 where message.id = ?1 and run.name = ?2 and run.ended_at is null and run.expires_at > ?3",
                params![id, tx.caller.run.as_deref(), tx.now],
            )
            .await?;
        if held.is_empty() {
            let message = "keys that begin with `wakeup/` are for the run that has the wake-up";
            return Err(Error::new(Code::LeaseExpired, message)
                .with("field", "key")
                .hint("choose another key"));
        }
        Ok(())
    }

    async fn by_key(&self, tx: &mut Tx<'_>) -> Result<Option<PostView>> {
        let Some(key) = &self.key else { return Ok(None) };
        let sql = posts!("where channel = ?1 and idempotency_key = ?2");
        let rows = tx.query(sql, params![&self.channel, key]).await?;
        rows.into_iter().next().map(|mut row| PostView::read(&mut row)).transpose()
    }

    /// The given names, or the names in the text.
    async fn mentioned(&self, tx: &mut Tx<'_>) -> Result<Mentions> {
        let written: BTreeSet<String> = match &self.mentions {
            Some(given) => return Ok(Mentions { known: given.iter().cloned().collect(), unknown: vec![] }),
            None => names_in(&self.body).into_iter().take(MENTIONS_MAX).collect(),
        };
        if written.is_empty() {
            return Ok(Mentions::default());
        }
        let mut batch = Batch::new();
        let found: Vec<Slot> = written.iter().map(|name| batch.add(self.candidates(name))).collect();
        let mut answers = tx.send(batch).await?;
        let mut mentions = Mentions::default();
        for (written, found) in written.into_iter().zip(found) {
            let found = answers.take(found).rows;
            let candidates = found.iter().map(|row| row.get("name")).collect::<Result<BTreeSet<String>>>()?;
            match resolve(&written, candidates) {
                Some(name) => drop(mentions.known.insert(name)),
                None => mentions.unknown.push(written),
            }
        }
        Ok(mentions)
    }

    /// The agents and members with this name, ignoring case. There is one statement per name, because PostgreSQL may
    /// read a whole table for a join. A member is found by channel and name in one text, because PostgreSQL may
    /// otherwise use the index of the channel's members.
    fn candidates(&self, name: &str) -> Stmt {
        let folded = name.to_ascii_lowercase();
        let member = format!("{}/{folded}", self.channel);
        Stmt::read(
            "select name from agent where lower(name) = ?1 and left_at is null
             union all
             select agent from reader where channel || '/' || lower(agent) = ?2 and member = 1",
            params![folded, member],
        )
    }

    async fn write(
        self,
        tx: &mut Tx<'_>,
        n: i64,
        author: Option<String>,
        mentions: Mentions,
    ) -> Result<Posted> {
        let Mentions { known, unknown } = mentions;
        let mentions: Vec<String> = known.into_iter().collect();
        let names = (!mentions.is_empty()).then(|| json!(mentions).to_string());
        let mut batch = Batch::new();
        batch.add(Stmt::write(
            "insert into post(channel, n, author, body, reply_to, mentions, idempotency_key, at, quiet)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            params![
                &self.channel,
                n,
                author.as_deref(),
                &self.body,
                self.reply_to,
                names.clone(),
                self.key.as_deref(),
                tx.now,
                i64::from(self.suppress_auto_trigger)
            ],
        ));
        if !mentions.is_empty() && !self.suppress_auto_trigger {
            let rows = set(mentions.iter().map(|name| json!({ "name": name })))?;
            batch.add(Stmt::write(
                "insert into mention(agent, channel, n, at)
                 select value ->> 'name', cast(?1 as text), cast(?2 as bigint), cast(?3 as bigint) from json_each(?4)",
                params![&self.channel, n, tx.now, rows.clone()],
            ));
            batch.add(Stmt::write(
                "insert into reader(agent, channel, mentioned_n, since, updated_at)
                 select value ->> 'name', cast(?1 as text), cast(?2 as bigint), cast(?3 as bigint), cast(?3 as bigint)
                 from json_each(?4) where true order by value ->> 'name'
                 on conflict (agent, channel) do update set mentioned_n = excluded.mentioned_n,
                   since = coalesce(case when reader.mentioned_n > reader.read_n then reader.since end, excluded.since),
                   updated_at = excluded.updated_at",
                params![&self.channel, n, tx.now, rows],
            ));
        }
        let posted = Event {
            topic: Some(Topic::Nobody),
            agent: author.clone(),
            details: Some(match unknown.is_empty() {
                true => json!({ "n": n, "mentions": mentions }),
                false => json!({ "n": n, "mentions": mentions, "unknown": unknown }),
            }),
            ..Event::new("channel.posted", format!("channel/{}", self.channel))
        };
        let mut events = vec![posted];
        let triggered = if self.suppress_auto_trigger { &[][..] } else { &mentions };
        events.extend(triggered.iter().map(|name| Event {
            agent: author.clone(),
            topic: Some(Topic::agent(name)),
            details: Some(json!({ "n": n })),
            ..Event::new("mentions.posted", format!("mentions/{name}/{}", self.channel))
        }));
        batch.add(Event::insert_many(tx, events)?);
        tx.send(batch).await?;
        cause::record(tx, author.as_deref(), [cause::post(&self.channel, n)]).await?;
        let post = PostView {
            channel: self.channel,
            n,
            author,
            body: self.body,
            reply_to: self.reply_to,
            mentions,
            at: tx.now,
        };
        Ok(Posted { post, existing: false, unknown })
    }

    /// A repeated request: the post that it wrote.
    async fn repeated(&self, tx: &mut Tx<'_>) -> Result<Posted> {
        let rows = tx
            .query(
                "select details from event where request = ?1 and kind = 'channel.posted' order by id limit 1",
                params![self.request.as_deref()],
            )
            .await?;
        let details: Option<String> = rows.first().map_or(Ok(None), |row| row.get("details"))?;
        let details: serde_json::Value =
            serde_json::from_str(&details.unwrap_or_default()).map_err(Error::internal)?;
        let n = details["n"].as_i64().unwrap_or_default();
        let rows = tx.query(posts!("where channel = ?1 and n = ?2"), params![&self.channel, n]).await?;
        let mut row = rows.into_iter().next().ok_or_else(|| not_found(&self.channel))?;
        let unknown = details["unknown"].as_array().into_iter().flatten();
        let unknown = unknown.filter_map(|name| name.as_str().map(str::to_owned)).collect();
        Ok(Posted { post: PostView::read(&mut row)?, existing: false, unknown })
    }
}

/// The names that a post mentions.
#[derive(Debug, Default, PartialEq)]
struct Mentions {
    /// The names of agents and members.
    known: BTreeSet<String>,
    /// Names of nobody, as written.
    unknown: Vec<String>,
}

/// The rule: the agent that a written name means, among names that differ from it at most in case. An exact match wins.
/// Otherwise the name must have only one candidate; with two or more it means nobody.
fn resolve(written: &str, mut candidates: BTreeSet<String>) -> Option<String> {
    match candidates.take(written) {
        Some(exact) => Some(exact),
        None if candidates.len() == 1 => candidates.pop_first(),
        None => None,
    }
}

/// The `@name`s in a text that are whole words: not those in `me@example.org`, `@scope/package` or `@a@b`.
fn names_in(body: &str) -> BTreeSet<String> {
    let part = |c: char| c.is_alphanumeric() || "._-".contains(c);
    let joins = |c: char| part(c) || "@/+".contains(c);
    let mut names = BTreeSet::new();
    for (at, _) in body.match_indices('@') {
        let rest = &body[at + 1..];
        let name = rest.split(|c: char| !part(c)).next().unwrap_or_default();
        let (before, after) = (body[..at].chars().next_back(), rest[name.len()..].chars().next());
        if before.is_some_and(joins) || matches!(after, Some('@' | '/')) {
            continue;
        }
        let name = name.trim_end_matches(['.', '-', '_']);
        if check::plain_name("mentions", name).is_ok() {
            names.insert(name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_a_text() {
        let found = |text| names_in(text).into_iter().collect::<Vec<_>>().join(" ");
        assert_eq!(found("@lead and @worker-2: look. (@x)"), "lead worker-2 x");
        assert_eq!(found("mail me@example.org, or @ nobody"), "");
        assert_eq!(found("ask @bob."), "bob");
        assert_eq!(found("ask (@Bob), @bob's sister or \u{201c}@ann\u{201d}: @kim!"), "Bob ann bob kim");
        assert_eq!(found(""), "");
        for text in [
            "bob@lead.com",
            "zoé@lead",
            "@leadé",
            "@lead/core",
            "https://x/@lead",
            "@lead@host",
            "x+@lead",
            "@@lead",
        ] {
            assert!(!names_in(text).contains("lead"), "{text}");
        }
    }

    #[test]
    fn capitals_tell_names_apart() {
        for (written, candidates, expected) in [
            ("LEAD", "lead", "lead"),
            ("bob", "bob", "bob"),
            ("bob", "Bob bob", "bob"),
            ("Bob", "Bob bob", "Bob"),
            ("BOB", "Bob bob", ""),
            ("nobody", "", ""),
        ] {
            let names = candidates.split_whitespace().map(str::to_owned).collect();
            assert_eq!(resolve(written, names).unwrap_or_default(), expected, "{written} of {candidates:?}");
        }
    }
}
