//! A reader row: an agent's cursor in a channel, and the claim on its unread mentions there.

use super::{PostView, posts};
use crate::{
    clock::{Millis, Time},
    db::{Answers, Batch, Delivered, Row, Slot, Stmt, Tx, set},
    error::{Error, Result},
    ids::{Resource, Token},
    lease::{
        ClaimState, Hold, Last,
        hold::{next_fence, write_logged},
        run::Holder,
    },
    log::Event,
    ops::storm::{
        mentions::{self, Allowed},
        wakeups,
    },
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Unread mentions, or for a wake-up all unread posts, in a channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Mentions {
    pub channel: String,
    /// The first unread post.
    pub from: i64,
    /// The last post that the claim covers.
    pub to: i64,
    /// The posts in which the agent is mentioned.
    pub mentions: Vec<i64>,
    /// Those posts, or for a wake-up all posts of others, oldest first, up to a size limit. `channel/read` returns the rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub posts: Vec<PostView>,
}

#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub agent: String,
    pub channel: String,
    pub read: i64,
    pub mentioned: i64,
    pub given: Option<i64>,
    /// Number of claims in a row that expired or failed.
    pub attempts: i64,
    /// The last post that was given up: mentions up to it trigger nobody any more.
    pub failed: i64,
    pub fence: i64,
    pub delivery: i64,
    pub hold: Option<Hold>,
    pub last: Option<Last>,
}

macro_rules! columns {
    ($rest:literal) => {
        concat!(
            "select reader.agent, reader.channel, reader.read_n, reader.mentioned_n, reader.given_n, reader.fence,
               reader.attempts, reader.failed_n, reader.delivery, reader.claimed_at, reader.until_at, reader.last_fence, reader.last_verb,
               reader.last_digest, run.key as run_key, run.name as run_name, run.agent as run_agent,
               run.expires_at as run_expires_at, run.ended_at as run_ended_at
             from reader left join run on run.key = reader.run ",
            $rest
        )
    };
}
pub(crate) use columns;

impl Record {
    pub fn read(mut row: Row) -> Result<Self> {
        Ok(Self {
            agent: row.take("agent")?,
            channel: row.take("channel")?,
            read: row.take("read_n")?,
            mentioned: row.take("mentioned_n")?,
            given: row.take("given_n")?,
            attempts: row.take("attempts")?,
            failed: row.take("failed_n")?,
            fence: row.take("fence")?,
            delivery: row.take("delivery")?,
            hold: Hold::read(&mut row)?,
            last: Last::read(&mut row)?,
        })
    }
    pub fn read_all(rows: Vec<Row>) -> Result<Vec<Self>> {
        rows.into_iter().map(Self::read).collect()
    }
    pub fn resource(&self) -> Resource {
        Resource::new("mentions", format_args!("{}/{}", self.agent, self.channel))
    }
    pub fn token(&self) -> Token {
        Token { resource: self.resource(), fence: self.fence }
    }
    pub fn claim_state(&self) -> ClaimState {
        ClaimState { fence: self.fence, hold: self.hold.clone(), closed: None, last: self.last.clone() }
    }
    pub fn state(&self) -> &'static str {
        match (&self.hold, self.mentioned > self.read) {
            (Some(_), _) => "processing",
            (None, true) => "unread",
            (None, false) => "read",
        }
    }
    /// The last post that the claim covers.
    fn last_given(&self) -> i64 {
        self.given.unwrap_or(self.read).max(self.read)
    }
    /// The rule for an expired or failed claim. Retries are limited, so that a post does not wake runs without end. A
    /// later mention starts again. Returns whether the mentions were given up.
    pub fn fail(&mut self, given: Option<i64>) -> bool {
        if self.attempts < ATTEMPTS {
            return false;
        }
        (self.attempts, self.failed) = (0, given.unwrap_or(self.failed));
        true
    }
    /// The record after its claim was ended by this verb.
    pub fn free(&self, verb: &str) -> Record {
        let last = self.hold.as_ref().map(|hold| Last::new(hold.fence, verb, &[]));
        Record { hold: None, given: None, last: last.or_else(|| self.last.clone()), ..self.clone() }
    }
    /// An event for the change from `before` to this record.
    pub fn event(&self, kind: &'static str, before: &Record) -> Event {
        let hold = before.hold.as_ref().or(self.hold.as_ref());
        Event {
            run: hold.map(|hold| hold.run.clone()),
            agent: hold.and_then(|hold| hold.agent.clone()),
            fence: Some(self.fence),
            topic: Some(Topic::agent(&self.agent)),
            ..Event::new(kind, self.resource().to_string()).states(before.state(), self.state())
        }
    }

    /// Writes the cursor and the claim, if the fence is unchanged and the run `alive` is alive. `since` follows the
    /// cursor. If the cursor moves and newer posts are unread, the scheduler of wake-ups looks at once.
    pub fn save(&self, before: &Record, alive: Option<i64>, now: Time) -> Stmt {
        let (hold, last) = (self.hold.as_ref(), self.last.as_ref());
        Stmt::write(
            "update reader set run = ?4, fence = ?5, until_at = ?6, claimed_at = ?7, last_fence = ?8, last_verb = ?9,
               last_digest = ?10, updated_at = ?11, read_n = ?13, given_n = ?14, attempts = ?15, failed_n = ?16,
               since = (select min(at) from mention where mention.agent = ?1 and mention.channel = ?2
                 and mention.n > ?13),
               wake_at = case when member = 0 or wake_n <= ?13 then null when read_n < ?13 then ?11 else wake_at end
             where agent = ?1 and channel = ?2 and fence = ?3
             and (cast(?12 as bigint) is null or ((until_at is null or until_at > ?11)
               and exists (select 1 from run where key = ?12 and ended_at is null and expires_at > ?11)))",
            params![
                &self.agent,
                &self.channel,
                before.fence,
                hold.map(|hold| hold.run_key),
                self.fence,
                hold.and_then(|hold| hold.until),
                hold.map(|hold| hold.claimed_at),
                last.map(|last| last.fence),
                last.map(|last| last.verb.as_str()),
                last.map(|last| last.digest.as_str()),
                now,
                alive,
                self.read,
                self.given,
                self.attempts,
                self.failed,
            ],
        )
    }
}

pub(crate) async fn load(tx: &mut Tx<'_>, agent: &str, channel: &str) -> Result<Option<Record>> {
    let rows = tx
        .query(columns!("where reader.agent = ?1 and reader.channel = ?2"), params![agent, channel])
        .await?;
    rows.into_iter().next().map(Record::read).transpose()
}

pub(crate) async fn load_locked(tx: &mut Tx<'_>, agent: &str, channel: &str) -> Result<Option<Record>> {
    let mut batch = Batch::new();
    batch.add(Stmt::lock(
        "select 1 from reader where agent = ?1 and channel = ?2 for update",
        params![agent, channel],
    ));
    let found = batch.add(Stmt::read(
        columns!("where reader.agent = ?1 and reader.channel = ?2"),
        params![agent, channel],
    ));
    let rows = tx.send(batch).await?.take(found).rows;
    rows.into_iter().next().map(Record::read).transpose()
}

/// Mentions are given up after this many claims that expired or failed.
pub(super) const ATTEMPTS: i64 = 3;
/// Limit on the channels of one trigger.
const CHANNELS: i64 = 20;

/// Limits on the posts that a trigger carries: per channel, and bytes in all.
const POSTS: i64 = 50;
pub(crate) const POSTS_SIZE: usize = 1024 * 1024;

/// The posts that a trigger carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unread {
    /// Those that mention the agent.
    Mentions,
    /// All posts of others.
    Posts,
    /// All posts of others up to this one.
    PostsUpTo(i64),
}

/// Claimed mentions.
#[derive(Debug, Default)]
pub(crate) struct Claimed {
    pub mentions: Vec<(Hold, Record, Mentions)>,
    /// The post that causes the run.
    pub cause: Option<String>,
    /// The number of channels that a limit on causes left out.
    pub suppressed: i64,
}

/// Claims an agent's unread mentions in all its channels, for an open run.
pub(crate) async fn claim_for(
    tx: &mut Tx<'_>,
    agent: &str,
    holder: &Holder,
    run_key: i64,
    max: Option<Millis>,
) -> Result<Claimed> {
    let rows = tx
        .query(
            columns!(
                "where reader.ready = 1 and reader.agent = ?1 order by reader.since limit ?2
                 /*pg for update of reader skip locked*/"
            ),
            params![agent, CHANNELS],
        )
        .await?;
    let Allowed { readers: mut found, cause, suppressed } =
        mentions::allowed(tx, Record::read_all(rows)?).await?;
    // The last attempt claims one channel alone, so that only the mentions that cause the failure are given up.
    if let Some(last) = found.iter().position(|reader| reader.attempts + 1 >= ATTEMPTS) {
        found.truncate(last.max(1));
    }
    let mut claimed = Vec::with_capacity(found.len());
    let mut room = POSTS_SIZE;
    for before in found {
        claimed.push(claim_one(tx, &before, holder, run_key, max, Unread::Mentions, &mut room).await?);
    }
    Ok(Claimed { mentions: claimed, cause, suppressed })
}

/// Claims an agent's cursor in one channel, for an open run. The reader row is free and locked. `room`: bytes left for posts.
pub(crate) async fn claim_one(
    tx: &mut Tx<'_>,
    before: &Record,
    holder: &Holder,
    run_key: i64,
    max: Option<Millis>,
    unread: Unread,
    room: &mut usize,
) -> Result<(Hold, Record, Mentions)> {
    let last = super::next_number(tx, &before.channel).await? - 1;
    let to = match unread {
        Unread::PostsUpTo(to) => to.min(last),
        Unread::Mentions | Unread::Posts => last,
    };
    let fence = next_fence(tx, before.fence);
    let hold = holder.hold(run_key, fence, max, tx.now);
    let attempts = before.attempts + 1;
    let taken = Record { fence, hold: Some(hold.clone()), given: Some(to), attempts, ..before.clone() };
    let event = taken.event("mentions.claimed", before);
    let mut batch = Batch::new();
    let saved = batch.add(taken.save(before, Some(run_key), tx.now));
    batch.add(event.insert(tx));
    let posts = UnreadPosts::add(&mut batch, &taken, unread);
    let mut answers = tx.send(batch).await?;
    if answers.affected(saved) == 0 {
        return Err(Error::raced(format!("run `{}` ended at this moment", holder.name)));
    }
    let given = posts.read(&taken, &mut answers, room)?;
    tx.notes.delivered.push(Delivered { token: taken.token(), delivery: taken.delivery });
    Ok((hold, taken, given))
}

/// The reader row, locked, if no run holds it and no other transaction has locked it.
pub(crate) async fn load_free(tx: &mut Tx<'_>, agent: &str, channel: &str) -> Result<Option<Record>> {
    let sql = columns!(
        "where reader.agent = ?1 and reader.channel = ?2 and reader.run is null /*pg for update of reader skip locked*/"
    );
    let rows = tx.query(sql, params![agent, channel]).await?;
    rows.into_iter().next().map(Record::read).transpose()
}

/// Slots of the reads of a claim's posts.
#[derive(Debug, Clone, Copy)]
struct UnreadPosts {
    /// The numbers of the posts that mention the agent.
    numbers: Slot,
    /// The first posts in full.
    posts: Slot,
}

impl UnreadPosts {
    fn add(batch: &mut Batch, held: &Record, unread: Unread) -> Self {
        let (first, last) = (held.read + 1, held.last_given());
        Self {
            numbers: batch.add(Stmt::read(
                "select n from mention where agent = ?1 and channel = ?2 and n >= ?3 and n <= ?4
                 order by n limit 1000",
                params![&held.agent, &held.channel, first, last],
            )),
            posts: batch.add(Stmt::read(
                match unread {
                    Unread::Mentions => posts!(
                        "where channel = ?2 and n in (select n from mention where agent = ?1 and channel = ?2
                           and n >= ?3 and n <= ?4 order by n limit ?5)
                         order by n"
                    ),
                    Unread::Posts | Unread::PostsUpTo(_) => posts!(
                        "where channel = ?2 and n >= ?3 and n <= ?4 and coalesce(author, '') <> ?1 order by n limit ?5"
                    ),
                },
                params![&held.agent, &held.channel, first, last, POSTS],
            )),
        }
    }

    /// Takes posts until `room`, the bytes left for all channels, is used up.
    fn read(self, held: &Record, answers: &mut Answers, room: &mut usize) -> Result<Mentions> {
        let mut posts = Vec::new();
        for mut row in answers.take(self.posts).rows {
            let post = PostView::read(&mut row)?;
            let Some(left) = room.checked_sub(post.body.len()) else { break };
            *room = left;
            posts.push(post);
        }
        let numbers = answers.take(self.numbers).rows;
        Ok(Mentions {
            channel: held.channel.clone(),
            from: held.read + 1,
            to: held.last_given(),
            mentions: numbers.iter().map(|row| row.get("n")).collect::<Result<_>>()?,
            posts,
        })
    }
}

/// The posts of these claims again. The cursor has not moved: it moves when the claim ends.
pub(crate) async fn given(tx: &mut Tx<'_>, held: &[Record], unread: Unread) -> Result<Vec<Mentions>> {
    let mut room = POSTS_SIZE;
    let mut given = Vec::with_capacity(held.len());
    for held in held {
        let mut batch = Batch::new();
        let posts = UnreadPosts::add(&mut batch, held, unread);
        let mut answers = tx.send(batch).await?;
        given.push(posts.read(held, &mut answers, &mut room)?);
    }
    Ok(given)
}

/// Marks the mentions that the claim covers as read.
pub(crate) async fn settle(tx: &mut Tx<'_>, before: &Record) -> Result<()> {
    let after = Record { read: before.last_given(), attempts: 0, ..before.free("done") };
    let alive = before.hold.as_ref().map(|hold| hold.run_key);
    let event = after.event("mentions.read", before).insert(tx);
    if write_logged(tx, after.save(before, alive, tx.now), event).await? == 0 {
        return Err(Error::raced("a run ended at this moment"));
    }
    wakeups::drop_read_by(tx, &after.agent, &after.channel, after.read).await
}

/// Delivers the same claims again.
pub(crate) async fn again(tx: &mut Tx<'_>, held: &[Record]) -> Result<Vec<Delivered>> {
    let rows = held
        .iter()
        .map(|held| serde_json::json!({ "agent": held.agent, "channel": held.channel, "fence": held.fence }));
    let raised = tx
        .execute_returning(
            "update reader set delivery = delivery + 1 from json_each(?1) as item
             where reader.agent = item.value ->> 'agent' and reader.channel = item.value ->> 'channel'
             and reader.fence = cast(item.value ->> 'fence' as bigint) and reader.run is not null
             returning reader.channel, reader.delivery",
            params![set(rows)?],
        )
        .await?;
    let mut handed = Vec::with_capacity(held.len());
    for row in &raised {
        let channel: String = row.get("channel")?;
        if let Some(held) = held.iter().find(|held| held.channel == channel) {
            handed.push(Delivered { token: held.token(), delivery: row.get("delivery")? });
        }
    }
    if handed.len() < held.len() {
        return Err(Error::raced("a claim ended at this moment"));
    }
    Ok(handed)
}
