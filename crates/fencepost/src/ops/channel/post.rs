use super::{PostView, not_found, posts};
use crate::{
    caller::Access,
    db::{Batch, Slot, Stmt, Tx, set},
    engine::{
        op::{OnRetry, Op, erased},
        prelude::Prelude,
    },
    error::{Error, Result},
    limits::{BODY_MAX, NAME_MAX, check},
    log::Event,
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeSet;

pub(crate) const MENTIONS_MAX: usize = 100;

/// Post to a channel. Whoever is mentioned is triggered by it: the names that are given, or else those that stand in
/// the text as `@name` and belong to an agent, or to a member of the channel. Capitals do not matter. The reply says which
/// `@name`s belong to nobody.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Post {
    pub channel: String,
    pub body: String,
    /// Who posts it.
    #[serde(default)]
    pub author: Option<String>,
    /// Whom it mentions (the `@name`s in the text unless said).
    #[serde(default)]
    pub mentions: Option<Vec<String>>,
    /// The number of the post that it answers.
    #[serde(default)]
    pub reply_to: Option<i64>,
    /// A second post with the same key, in the same channel, changes nothing and gives the first.
    #[serde(default)]
    pub key: Option<String>,
    /// Asking again with the same id gives the first answer.
    #[serde(default)]
    pub request: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Posted {
    pub post: PostView,
    /// It was there already, by its key.
    pub existing: bool,
    /// What stands in the text as `@name`, and is the name of no agent and of no member of the channel.
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
        // The row's lock is held until the commit: numbers are given out in the order of commits.
        let number = tx
            .execute_returning(
                "update channel set next_n = next_n + 1 where name = ?1 returning next_n - 1 as n",
                params![&self.channel],
            )
            .await?;
        let n: i64 = number.first().ok_or_else(|| not_found(&self.channel))?.get("n")?;
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
        // Nobody is triggered by what they say themselves.
        mentions.known.retain(|name| Some(name) != author.as_ref());
        self.write(tx, n, author, mentions).await
    }
}

impl Post {
    async fn by_key(&self, tx: &mut Tx<'_>) -> Result<Option<PostView>> {
        let Some(key) = &self.key else { return Ok(None) };
        let sql = posts!("where channel = ?1 and idempotency_key = ?2");
        let rows = tx.query(sql, params![&self.channel, key]).await?;
        rows.into_iter().next().map(|mut row| PostView::read(&mut row)).transpose()
    }

    /// The names that are given, or those in the text that agents and members have.
    async fn mentioned(&self, tx: &mut Tx<'_>) -> Result<Mentions> {
        let written: BTreeSet<String> = match &self.mentions {
            Some(given) => return Ok(Mentions { known: given.iter().cloned().collect(), unknown: vec![] }),
            None => in_text(&self.body).into_iter().take(MENTIONS_MAX).collect(),
        };
        if written.is_empty() {
            return Ok(Mentions::default());
        }
        let mut batch = Batch::new();
        let alike: Vec<Slot> = written.iter().map(|name| batch.add(self.alike(name))).collect();
        let mut answers = tx.send(batch).await?;
        let mut mentions = Mentions::default();
        for (written, alike) in written.into_iter().zip(alike) {
            let alike = answers.take(alike).rows;
            let alike = alike.iter().map(|row| row.get("name")).collect::<Result<BTreeSet<String>>>()?;
            match the_one(&written, alike) {
                Some(name) => drop(mentions.known.insert(name)),
                None => mentions.unknown.push(written),
            }
        }
        Ok(mentions)
    }

    /// The agents and members whose name is this one if capitals do not matter. Each name is looked up by a statement of its
    /// own, because PostgreSQL may answer a join by reading everything; and a member by channel and name in one text,
    /// because it may take the index of the channel's members otherwise.
    fn alike(&self, name: &str) -> Stmt {
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
            "insert into post(channel, n, author, body, reply_to, mentions, idempotency_key, at)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            params![
                &self.channel,
                n,
                author.as_deref(),
                &self.body,
                self.reply_to,
                names.clone(),
                self.key.as_deref(),
                tx.now
            ],
        ));
        if !mentions.is_empty() {
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
        events.extend(mentions.iter().map(|name| Event {
            agent: author.clone(),
            topic: Some(Topic::agent(name)),
            details: Some(json!({ "n": n })),
            ..Event::new("mentions.posted", format!("mentions/{name}/{}", self.channel))
        }));
        batch.add(Event::insert_many(tx, events)?);
        tx.send(batch).await?;
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

    /// The same request again: what it posted.
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

/// The `@name`s of a text.
#[derive(Debug, Default, PartialEq)]
struct Mentions {
    /// The names of agents and members.
    known: BTreeSet<String>,
    /// As they are written.
    unknown: Vec<String>,
}

/// The rule: whom a written name means, of those whose names differ from it at most in capitals. Names that differ in their
/// capitals alone are told apart by them: written in a third way they mean nobody.
fn the_one(written: &str, mut alike: BTreeSet<String>) -> Option<String> {
    match alike.take(written) {
        Some(exact) => Some(exact),
        None if alike.len() == 1 => alike.pop_first(),
        None => None,
    }
}

/// The `@name`s in a text that stand there as words: not in `me@example.org`, `@scope/package` or `@a@b`.
fn in_text(body: &str) -> BTreeSet<String> {
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
        let found = |text| in_text(text).into_iter().collect::<Vec<_>>().join(" ");
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
            assert!(!in_text(text).contains("lead"), "{text}");
        }
    }

    #[test]
    fn capitals_tell_names_apart() {
        for (written, alike, expected) in [
            ("LEAD", "lead", "lead"),
            ("bob", "bob", "bob"),
            ("bob", "Bob bob", "bob"),
            ("Bob", "Bob bob", "Bob"),
            ("BOB", "Bob bob", ""),
            ("nobody", "", ""),
        ] {
            let names = alike.split_whitespace().map(str::to_owned).collect();
            assert_eq!(the_one(written, names).unwrap_or_default(), expected, "{written} of {alike:?}");
        }
    }
}
