//! Giving a lock back: by its token, or by an operator.

use super::{Record, load_locked};
use crate::{
    db::tx::Tx,
    error::{Code, Error, Result},
    names::Token,
    ops::{
        claim::{Hold, Last, deliver::Handed, require},
        event::Event,
    },
};

pub(crate) async fn release(tx: &mut Tx<'_>, name: &str, token: &Token) -> Result<String> {
    let lock = find(tx, name).await?;
    if lock.as_ref().is_some_and(|lock| lock.last == Some(Last::new(token.fence, "release", &[]))) {
        return Ok("free".into());
    }
    let look = lock.as_ref().map(Record::look);
    let run_key = require(look.as_ref(), token, tx.now)?.run_key;
    let lock = lock.ok_or_else(|| not_found(name))?;
    let free = lock.free("release");
    let event = free.event("lock.released", &lock);
    let statements = vec![free.save(&lock, Some(run_key), tx.now), event.insert(tx)];
    if tx.pipeline(statements).await?[0].affected == 0 {
        return Err(Error::new(Code::LeaseExpired, format!("claim `{token}` ended at this moment")));
    }
    Ok("free".into())
}

/// What could not be handed over is free again, unless it was handed over since. Gives how many locks that are.
pub(crate) async fn undeliver(tx: &mut Tx<'_>, name: &str, handed: &Handed) -> Result<u64> {
    let Some(lock) = find(tx, name).await? else { return Ok(0) };
    let is_same = |hold: &&Hold| hold.fence == handed.token.fence && hold.is_alive(tx.now);
    let Some(hold) = lock.hold.as_ref().filter(is_same).filter(|_| lock.delivery == handed.delivery) else {
        return Ok(0);
    };
    let free = lock.free("undeliver");
    let event = free.event("lock.undelivered", &lock);
    let statements = vec![free.save(&lock, Some(hold.run_key), tx.now), event.insert(tx)];
    if tx.pipeline(statements).await?[0].affected == 0 {
        return Err(Error::again("a run ended at this moment"));
    }
    Ok(1)
}

pub(crate) async fn unclaim(
    tx: &mut Tx<'_>,
    name: &str,
    reason: Option<&str>,
) -> Result<(Option<String>, String)> {
    let lock = find(tx, name).await?.ok_or_else(|| not_found(name))?;
    let Some(hold) = &lock.hold else { return Ok((None, "free".into())) };
    let run = hold.run.clone();
    let free = lock.free("unclaim");
    // Who took it away is the caller, not the holder.
    let event = Event {
        agent: None,
        details: reason.map(|reason| serde_json::json!({ "reason": reason })),
        ..free.event("lock.unclaimed", &lock)
    };
    tx.pipeline(vec![free.save(&lock, None, tx.now), event.insert(tx)]).await?;
    Ok((Some(run), "free".into()))
}

async fn find(tx: &mut Tx<'_>, name: &str) -> Result<Option<Record>> {
    let mut answers = tx.pipeline(load_locked(name)).await?;
    answers.remove(1).rows.into_iter().next().map(Record::read).transpose()
}

fn not_found(name: &str) -> Error {
    Error::new(Code::NotFound, format!("there is no lock `{name}`"))
}
