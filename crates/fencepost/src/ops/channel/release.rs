//! Ending a claim on mentions: by its holder, by an operator, or because it was not delivered.

use super::{
    claimable::parts,
    reader::{Record, load_locked},
};
use crate::{
    db::{Delivered, Tx},
    error::{Code, Error, Result},
    ids::Token,
    lease::claimable::Unclaimed,
    lease::{
        Hold, Last,
        hold::{require, write_logged},
    },
    log::Event,
};

/// `verb`: stored as the end of the claim.
pub(crate) async fn release(tx: &mut Tx<'_>, token: &Token, verb: &str) -> Result<String> {
    let (agent, channel) = parts(token.resource.id());
    let found = load_locked(tx, agent, channel).await?;
    if let Some(reader) = &found
        && reader.last == Some(Last::new(token.fence, verb, &[]))
    {
        return Ok(reader.state().into());
    }
    let state = found.as_ref().map(Record::claim_state);
    let run_key = require(state.as_ref(), token, tx.now)?.run_key;
    let found = found.ok_or_else(|| Error::internal("a token without a reader row"))?;
    // A released attempt does not count.
    let free = Record { attempts: (found.attempts - 1).max(0), ..found.free(verb) };
    let event = free.event("mentions.released", &found).insert(tx);
    if write_logged(tx, free.save(&found, Some(run_key), tx.now), event).await? == 0 {
        return Err(Error::new(Code::LeaseExpired, format!("claim `{token}` ended at this moment")));
    }
    Ok(free.state().into())
}

/// Its run reports a failure: another run retries while attempts are left.
pub(crate) async fn fail(tx: &mut Tx<'_>, held: &Record, run: i64) -> Result<()> {
    let mut free = held.free("fail");
    let given_up = free.fail(held.given);
    let kind = if given_up { "mentions.failed" } else { "mentions.released" };
    let event = free.event(kind, held).insert(tx);
    if write_logged(tx, free.save(held, Some(run), tx.now), event).await? == 0 {
        return Err(Error::raced("a run ended at this moment"));
    }
    Ok(())
}

/// Releases mentions whose claim was not delivered, unless it was delivered again since. Returns how many.
pub(crate) async fn return_undelivered(tx: &mut Tx<'_>, delivered: &[&Delivered]) -> Result<u64> {
    let mut returned = 0;
    for delivered in delivered {
        returned += return_one(tx, delivered).await?;
    }
    Ok(returned)
}

async fn return_one(tx: &mut Tx<'_>, handed: &Delivered) -> Result<u64> {
    let (agent, channel) = parts(handed.token.resource.id());
    let Some(found) = load_locked(tx, agent, channel).await? else { return Ok(0) };
    let is_same = |hold: &&Hold| hold.fence == handed.token.fence && hold.is_alive(tx.now);
    let Some(hold) = found.hold.as_ref().filter(is_same).filter(|_| found.delivery == handed.delivery) else {
        return Ok(0);
    };
    let free = Record { attempts: (found.attempts - 1).max(0), ..found.free("undeliver") };
    let event = free.event("mentions.undelivered", &found).insert(tx);
    if write_logged(tx, free.save(&found, Some(hold.run_key), tx.now), event).await? == 0 {
        return Err(Error::raced("a run ended at this moment"));
    }
    Ok(1)
}

pub(crate) async fn unclaim(tx: &mut Tx<'_>, id: &str, reason: Option<&str>) -> Result<Unclaimed> {
    let (agent, channel) = parts(id);
    let found = load_locked(tx, agent, channel).await?.ok_or_else(|| super::not_found(channel))?;
    let Some(hold) = &found.hold else {
        return Ok(Unclaimed { held_by: None, status: found.state().into() });
    };
    let run = hold.is_alive(tx.now).then(|| hold.run.clone());
    let free = found.free("unclaim");
    // The event's agent is the caller, not the holder.
    let event = Event {
        agent: None,
        details: reason.map(|reason| serde_json::json!({ "reason": reason })),
        ..free.event("mentions.unclaimed", &found)
    };
    let event = event.insert(tx);
    write_logged(tx, free.save(&found, None, tx.now), event).await?;
    Ok(Unclaimed { held_by: run, status: free.state().into() })
}
