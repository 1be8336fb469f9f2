//! Handing a claim over to someone who may have hung up meanwhile.
//!
//! A claim is committed before its reply is sent, so a client that is gone by then holds what it does not know of,
//! until the lease is over. What could not be handed over is given back instead, with no attempt counted. But the
//! client may have asked again, of another server, and been given that very claim: each time that a claim is
//! handed out anew is a delivery with a number, and only the latest is given back.

use crate::{
    db::tx::{BoxFuture, Stmt, Tx},
    engine::fleet::Fleet,
    error::{Error, Result},
    names::{Resource, TaskId, Token},
    ops::{channel, lock, mail, run, task},
    params,
};
use std::{collections::HashMap, time::Duration};

/// A claim as it was handed out: once more, and its number is another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Handed {
    pub token: Token,
    pub delivery: i64,
}

/// What a reply hands over. Unless it is said to have been delivered, dropping it gives that back.
#[derive(Debug)]
#[must_use = "dropping it gives the claims back"]
pub struct Delivery {
    fleet: Fleet,
    handed: Vec<Handed>,
}

/// The pauses before another try, if the database does not take it: together well below 2 s.
const PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_millis(200), Duration::from_millis(800)];

impl Delivery {
    pub(crate) fn new(fleet: Fleet, handed: Vec<Handed>) -> Self {
        Self { fleet, handed }
    }

    /// Does it hand anything over? If not, nothing hangs on it.
    pub fn is_empty(&self) -> bool {
        self.handed.is_empty()
    }

    /// The reply reached whoever asked.
    pub fn delivered(mut self) {
        self.handed.clear();
    }

    /// It did not: what is still as it was handed out is free when this returns. Gives how many claims that were.
    pub fn undelivered(mut self) -> BoxFuture<'static, Result<u64>> {
        let handed = std::mem::take(&mut self.handed);
        Box::pin(async move { self.fleet.give_back(handed).await })
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let handed = std::mem::take(&mut self.handed);
        if handed.is_empty() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            tracing::warn!(
                "a claim was not delivered, and nothing runs that could give it back: its lease will end"
            );
            return;
        };
        let fleet = self.fleet.clone();
        runtime.spawn(async move {
            for pause in PAUSES {
                // Real time: it paces tries, and decides nothing.
                tokio::time::sleep(pause).await;
                match fleet.give_back(handed.clone()).await {
                    Ok(_) => return,
                    Err(e) => tracing::warn!("a claim that was not delivered could not be given back: {e}"),
                }
            }
        });
    }
}

/// Gives back what was handed out in one reply and not again since. Its event carries the request that took it, so
/// that asking again finds that nothing came of it.
pub(crate) async fn give_back(tx: &mut Tx<'_>, handed: &[Handed]) -> Result<u64> {
    let Some(first) = handed.first() else { return Ok(0) };
    let (request, asked, run) = taken_by(tx, &first.token).await?;
    (tx.opening.request, tx.opening.asked) = (request, asked);
    // Runs are locked before items.
    let polled = run::end::lock_triggered(tx, run.as_deref()).await?;
    let mut tasks: HashMap<TaskId, &Handed> = HashMap::new();
    let mut messages: HashMap<i64, &Handed> = HashMap::new();
    let mut given = 0;
    for handed in handed {
        match &handed.token.resource {
            Resource::Task(id) => drop(tasks.insert(id.clone(), handed)),
            Resource::Message(id) => drop(messages.insert(*id, handed)),
            Resource::Mentions { agent, channel } => {
                given += channel::release::undeliver(tx, agent, channel, handed).await?;
            }
            // A reply hands over one lock.
            Resource::Lock(name) => given += lock::release::undeliver(tx, name, handed).await?,
        }
    }
    if !tasks.is_empty() {
        given += task::release::undeliver(tx, &tasks).await?;
    }
    if !messages.is_empty() {
        given += mail::release::undeliver(tx, &messages).await?;
    }
    if let Some(run) = polled.filter(|_| given > 0) {
        run::end::end_if_idle(tx, run, UNDELIVERED).await?;
    }
    Ok(given)
}

/// Why a run ended whose trigger did not arrive: polling again with its name begins anew.
pub(crate) const UNDELIVERED: &str = "undelivered";

/// The request that took it, what was asked under it, and the run.
async fn taken_by(
    tx: &mut Tx<'_>,
    token: &Token,
) -> Result<(Option<String>, Option<String>, Option<String>)> {
    let rows = tx
        .query(
            "select request, asked, run from event where resource = ?1 and fence = ?2
             and kind in ('task.claimed', 'message.claimed', 'mentions.claimed', 'lock.claimed')",
            params![token.resource.to_string(), token.fence],
        )
        .await?;
    let Some(row) = rows.first() else { return Ok((None, None, None)) };
    Ok((row.get("request")?, row.get("asked")?, row.get("run")?))
}

/// In the order in which everybody locks them, and then the write.
macro_rules! raise {
    ($table:literal, $key:literal) => {
        [
            concat!(
                "select 1 from ",
                $table,
                " where ",
                $key,
                " in (select cast(value ->> 'k' as bigint) from json_each(?1)) order by ",
                $key,
                " for update"
            ),
            concat!(
                "update ",
                $table,
                " set delivery = delivery + 1 from json_each(?1) as item where ",
                $table,
                ".",
                $key,
                " = cast(item.value ->> 'k' as bigint) and ",
                $table,
                ".fence = cast(item.value ->> 'fence' as bigint) and ",
                $table,
                ".run is not null returning ",
                $table,
                ".",
                $key,
                " as item_key, ",
                $table,
                ".delivery"
            ),
        ]
    };
}

/// Tasks that are handed out once more, each under a number of its own.
pub(crate) async fn again(tx: &mut Tx<'_>, claims: &[(i64, Token)]) -> Result<Vec<Handed>> {
    raise(tx, raise!("task", "seq"), claims).await
}

/// The same for messages.
pub(crate) async fn message_again(tx: &mut Tx<'_>, claims: &[(i64, Token)]) -> Result<Vec<Handed>> {
    raise(tx, raise!("message", "id"), claims).await
}

/// The rows may have moved since they were read: then everything starts over.
async fn raise(
    tx: &mut Tx<'_>,
    [lock, write]: [&'static str; 2],
    claims: &[(i64, Token)],
) -> Result<Vec<Handed>> {
    let rows = crate::db::tx::set(
        claims.iter().map(|(key, token)| serde_json::json!({ "k": key, "fence": token.fence })),
    )?;
    let statements = vec![Stmt::lock(lock, params![rows.clone()]), Stmt::new(write, params![rows])];
    let raised = tx.pipeline(statements).await?.remove(1).rows;
    let mut numbers = HashMap::new();
    for row in &raised {
        numbers.insert(row.get::<i64>("item_key")?, row.get("delivery")?);
    }
    let handed = claims.iter().map(|(key, token)| {
        let delivery = numbers.get(key).copied();
        let delivery =
            delivery.ok_or_else(|| Error::again(format!("claim `{token}` ended at this moment")))?;
        Ok(Handed { token: token.clone(), delivery })
    });
    handed.collect()
}

/// The same for a lock.
pub(crate) async fn lock_again(tx: &mut Tx<'_>, name: &str, token: Token) -> Result<Handed> {
    let raised = tx
        .query(
            "update lock set delivery = delivery + 1 where name = ?1 and fence = ?2 and run is not null
             returning delivery",
            params![name, token.fence],
        )
        .await?;
    match raised.first() {
        Some(row) => Ok(Handed { token, delivery: row.get("delivery")? }),
        None => Err(Error::again(format!("claim `{token}` ended at this moment"))),
    }
}
