//! The limits on causes, for mentions: a mention at a limit triggers nobody, and its post stays unread.

use super::{
    alarm,
    facts::{self, Roots},
    rule::{Waker, cause},
    settings::Settings,
};
use crate::{
    clock::Time,
    db::{Batch, Stmt, Tx, set},
    error::Result,
    log::Event,
    ops::channel::reader::Record,
    params,
    topic::Topic,
};
use serde_json::json;
use std::collections::{BTreeSet, HashMap};

/// The unread mentions of a reader that are considered.
const POSTS: i64 = 50;

/// Mentions that may trigger a run.
#[derive(Debug, Default)]
pub(crate) struct Allowed {
    pub readers: Vec<Record>,
    /// The post that causes the run.
    pub cause: Option<String>,
    /// The number of readers that are left out.
    pub suppressed: i64,
}

/// Leaves out the readers whose unread mentions are all at a limit. Such mentions are given up: they trigger nobody, until the agent
/// is mentioned again. The rows are locked.
pub(crate) async fn allowed(tx: &mut Tx<'_>, readers: Vec<Record>) -> Result<Allowed> {
    if readers.is_empty() {
        return Ok(Allowed::default());
    }
    let rows = set(readers.iter().map(|reader| {
        json!({ "agent": reader.agent, "channel": reader.channel, "after": reader.read.max(reader.failed) })
    }))?;
    let mut batch = Batch::new();
    let settings = batch.add(Settings::stmt());
    let posts = batch.add(Stmt::read(
        "select mention.channel, mention.n, caused.root, caused.depth from json_each(?1) as item cross join mention
         left join caused on caused.item = 'post/' || mention.channel || '/' || mention.n
         where mention.agent = item.value ->> 'agent' and mention.channel = item.value ->> 'channel' and mention.n in (
           select newest.n from mention as newest where newest.agent = item.value ->> 'agent'
           and newest.channel = item.value ->> 'channel' and newest.n > cast(item.value ->> 'after' as bigint)
           order by newest.n desc limit ?2)",
        params![rows, POSTS],
    ));
    let mut answers = tx.send(batch).await?;
    let settings = Settings::read(&answers.take(settings).rows)?;
    let mut wakers = HashMap::<String, Vec<Waker>>::new();
    let mut roots = BTreeSet::new();
    for row in answers.take(posts).rows {
        let channel: String = row.get("channel")?;
        let waker = facts::waker(&row, &channel)?;
        roots.insert(waker.root.clone());
        wakers.entry(channel).or_default().push(waker);
    }
    let fanouts = facts::fanouts(tx, roots, &settings, Roots::Locked).await?;
    let fanout = |root: &str| fanouts.get(root).copied().unwrap_or_default();
    let (mut allowed, mut causes, mut suppressed) = (Allowed::default(), Vec::new(), Vec::new());
    for reader in readers {
        let posts = wakers.remove(&reader.channel).unwrap_or_default();
        match cause(&posts, &settings.limits(&reader.channel), fanout, tx.now) {
            Ok(waker) => {
                causes.push(waker.clone());
                allowed.readers.push(reader);
            }
            Err((why, until)) => suppressed.push((reader, posts, why, until)),
        }
    }
    allowed.cause = causes.into_iter().max_by_key(|waker| waker.depth).map(|waker| waker.cause);
    allowed.suppressed = suppressed.len() as i64;
    for (reader, posts, why, until) in suppressed {
        give_up(tx, &reader, why.as_str(), until).await?;
        if let Some(waker) = posts.iter().max_by_key(|waker| waker.depth) {
            alarm::bound_reached(tx, &waker.root, &waker.cause, Some(why.as_str()), settings.window())
                .await?;
        }
    }
    Ok(allowed)
}

/// Gives up a reader's mentions. If the agent is a member, the scheduler of wake-ups looks at the posts when the limit may be over.
async fn give_up(tx: &mut Tx<'_>, reader: &Record, why: &'static str, until: Option<Time>) -> Result<()> {
    let event = Event {
        topic: Some(Topic::Nobody),
        details: Some(json!({ "why": why, "until": until })),
        ..Event::new("mentions.suppressed", reader.resource().to_string())
    };
    let write = Stmt::write(
        "update reader set failed_n = mentioned_n, attempts = 0, wake_why = ?3,
           wake_at = case when member = 1 and wake_n > read_n then coalesce(?4, wake_at) else wake_at end
         where agent = ?1 and channel = ?2",
        params![&reader.agent, &reader.channel, why, until],
    );
    let event = event.insert(tx);
    tx.send(Batch::from([write, event])).await.map(drop)
}
