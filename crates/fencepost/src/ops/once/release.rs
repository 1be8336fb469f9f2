//! The end of a claim without a result: its holder never started the command, or somebody took the claim away.

use super::{
    Status, not_found,
    record::{Record, load_locked, raced},
};
use crate::{
    db::{Delivered, Tx},
    error::Result,
    ids::Token,
    lease::{
        Hold, Last,
        claimable::Unclaimed,
        hold::{check_written, require, write_logged},
    },
    log::Event,
};

/// The holder gives the claim back, which says that it did not start the command.
pub(crate) async fn release(tx: &mut Tx<'_>, token: &Token) -> Result<Status> {
    let key = token.resource.id();
    let found = load_locked(tx, key).await?;
    if let Some(effect) = &found
        && effect.last == Some(Last::new(token.fence, "release", &[]))
    {
        return Ok(effect.status);
    }
    let state = found.as_ref().map(Record::claim_state);
    let run_key = require(state.as_ref(), token, tx.now)?.run_key;
    let before = found.ok_or_else(|| not_found(key))?;
    let after = before.restore("release", tx.now);
    let event = after.event("once.released", &before).insert(tx);
    check_written(write_logged(tx, after.save(&before, Some(run_key), tx.now), event).await?, token)?;
    Ok(after.status)
}

/// Gives back claims that did not arrive, unless they were delivered again since: nobody started their commands.
/// Returns their number.
pub(crate) async fn return_undelivered(tx: &mut Tx<'_>, delivered: &[&Delivered]) -> Result<u64> {
    let mut returned = 0;
    // A reply delivers at most one effect.
    for delivered in delivered {
        returned += return_one(tx, delivered).await?;
    }
    Ok(returned)
}

async fn return_one(tx: &mut Tx<'_>, delivered: &Delivered) -> Result<u64> {
    let Some(before) = load_locked(tx, delivered.token.resource.id()).await? else { return Ok(0) };
    let is_same = |hold: &&Hold| hold.fence == delivered.token.fence && hold.is_alive(tx.now);
    let hold = before.hold.as_ref().filter(is_same).filter(|_| before.delivery == delivered.delivery);
    let Some(hold) = hold else { return Ok(0) };
    let after = before.restore("undeliver", tx.now);
    let event = after.event("once.undelivered", &before).insert(tx);
    if write_logged(tx, after.save(&before, Some(hold.run_key), tx.now), event).await? == 0 {
        return Err(raced(&before.name));
    }
    Ok(1)
}

/// An operator takes the claim away. The command may have begun, so the effect is in doubt.
pub(crate) async fn unclaim(tx: &mut Tx<'_>, key: &str, reason: Option<&str>) -> Result<Unclaimed> {
    let before = load_locked(tx, key).await?.ok_or_else(|| not_found(key))?;
    let Some(hold) = &before.hold else {
        return Ok(Unclaimed { held_by: None, status: before.status.as_str().into() });
    };
    let why = reason.map_or(String::new(), |reason| format!(": {reason}"));
    let after = before.doubt("unclaim", format!("an operator took the claim away{why}"), tx.now);
    let held_by = Some(hold.run.clone());
    // The event's agent is the caller, not the holder.
    let event = Event { agent: None, ..after.event("once.unclaimed", &before) }.because(reason).insert(tx);
    write_logged(tx, after.save(&before, None, tx.now), event).await?;
    Ok(Unclaimed { held_by, status: after.status.as_str().into() })
}

/// Its run was settled while it held the claim: nobody said how the command ended.
pub(crate) async fn settle(tx: &mut Tx<'_>, token: &Token) -> Result<()> {
    let key = token.resource.id();
    let found = load_locked(tx, key).await?;
    let state = found.as_ref().map(Record::claim_state);
    let run_key = require(state.as_ref(), token, tx.now)?.run_key;
    let before = found.ok_or_else(|| not_found(key))?;
    let after = before.doubt("settle", "its run was settled".into(), tx.now);
    let event = after.event("once.lapsed", &before).because(after.reason.as_deref()).insert(tx);
    check_written(write_logged(tx, after.save(&before, Some(run_key), tx.now), event).await?, token)
}
