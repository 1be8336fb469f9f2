//! Giving a lock back: by its token, or by an operator.

use super::{Record, add_locked};
use crate::{
    db::{Batch, Delivered, Tx},
    error::{Code, Error, Result},
    ids::Token,
    lease::claimable::Unclaimed,
    lease::{
        Hold, Last,
        hold::{require, write_logged},
    },
    log::Event,
};

pub(crate) async fn release(tx: &mut Tx<'_>, token: &Token) -> Result<String> {
    let name = token.resource.id();
    let lock = find(tx, name).await?;
    if lock.as_ref().is_some_and(|lock| lock.last == Some(Last::new(token.fence, "release", &[]))) {
        return Ok("free".into());
    }
    let state = lock.as_ref().map(Record::claim_state);
    let run_key = require(state.as_ref(), token, tx.now)?.run_key;
    let lock = lock.ok_or_else(|| not_found(name))?;
    let free = lock.free("release");
    let event = free.event("lock.released", &lock).insert(tx);
    if write_logged(tx, free.save(&lock, Some(run_key), tx.now), event).await? == 0 {
        return Err(Error::new(Code::LeaseExpired, format!("claim `{token}` ended at this moment")));
    }
    Ok("free".into())
}

/// Frees locks whose claim did not arrive, unless they were delivered again since. Returns their number.
pub(crate) async fn return_undelivered(tx: &mut Tx<'_>, delivered: &[&Delivered]) -> Result<u64> {
    let mut returned = 0;
    // A reply delivers at most one lock.
    for delivered in delivered {
        returned += return_one(tx, delivered).await?;
    }
    Ok(returned)
}

async fn return_one(tx: &mut Tx<'_>, delivered: &Delivered) -> Result<u64> {
    let Some(lock) = find(tx, delivered.token.resource.id()).await? else { return Ok(0) };
    let is_same = |hold: &&Hold| hold.fence == delivered.token.fence && hold.is_alive(tx.now);
    let Some(hold) = lock.hold.as_ref().filter(is_same).filter(|_| lock.delivery == delivered.delivery)
    else {
        return Ok(0);
    };
    let free = lock.free("undeliver");
    let event = free.event("lock.undelivered", &lock).insert(tx);
    if write_logged(tx, free.save(&lock, Some(hold.run_key), tx.now), event).await? == 0 {
        return Err(Error::raced("a run ended at this moment"));
    }
    Ok(1)
}

pub(crate) async fn unclaim(tx: &mut Tx<'_>, name: &str, reason: Option<&str>) -> Result<Unclaimed> {
    let lock = find(tx, name).await?.ok_or_else(|| not_found(name))?;
    let Some(hold) = &lock.hold else { return Ok(Unclaimed { held_by: None, status: "free".into() }) };
    let run = hold.run.clone();
    let free = lock.free("unclaim");
    // The event's agent is the caller, not the holder.
    let event = Event {
        agent: None,
        details: reason.map(|reason| serde_json::json!({ "reason": reason })),
        ..free.event("lock.unclaimed", &lock)
    };
    let event = event.insert(tx);
    write_logged(tx, free.save(&lock, None, tx.now), event).await?;
    Ok(Unclaimed { held_by: Some(run), status: "free".into() })
}

async fn find(tx: &mut Tx<'_>, name: &str) -> Result<Option<Record>> {
    let mut batch = Batch::new();
    let found = add_locked(&mut batch, name);
    let found = tx.send(batch).await?.take(found).rows;
    found.into_iter().next().map(Record::read).transpose()
}

fn not_found(name: &str) -> Error {
    Error::new(Code::NotFound, format!("there is no lock `{name}`"))
}
