//! Giving a lock back: by its token, or by an operator.

use super::{Record, load_locked};
use crate::{
    claim::{Last, require},
    error::{Code, Error, Result},
    names::Token,
    tx::Tx,
};

pub(crate) async fn release(tx: &mut Tx<'_>, name: &str, token: &Token) -> Result<String> {
    let lock = find(tx, name).await?;
    if lock.as_ref().is_some_and(|lock| lock.last == Some(Last::new(token.fence, "release", &[]))) {
        return Ok("free".into());
    }
    require(lock.as_ref().map(Record::look).as_ref(), token, tx.now)?;
    match lock {
        Some(lock) => free(tx, lock, "release", "lock.released", None).await,
        None => Err(not_found(name)),
    }
}

pub(crate) async fn unclaim(
    tx: &mut Tx<'_>,
    name: &str,
    reason: Option<&str>,
) -> Result<(Option<String>, String)> {
    let lock = find(tx, name).await?.ok_or_else(|| not_found(name))?;
    let Some(hold) = &lock.hold else { return Ok((None, "free".into())) };
    let run = hold.run.clone();
    Ok((Some(run), free(tx, lock, "unclaim", "lock.unclaimed", reason).await?))
}

async fn find(tx: &mut Tx<'_>, name: &str) -> Result<Option<Record>> {
    let mut answers = tx.pipeline(load_locked(name)).await?;
    answers.remove(1).rows.into_iter().next().map(Record::read).transpose()
}

async fn free(
    tx: &mut Tx<'_>,
    lock: Record,
    verb: &str,
    kind: &'static str,
    reason: Option<&str>,
) -> Result<String> {
    let free = lock.free(verb);
    let mut event = free.event(kind, &lock);
    event.details = reason.map(|reason| serde_json::json!({ "reason": reason }));
    if verb == "unclaim" {
        // Who took it away is the caller, not the holder.
        event.agent = None;
    }
    let statements = vec![free.save(&lock, tx.now), event.insert(tx)];
    tx.pipeline(statements).await?;
    Ok("free".into())
}

fn not_found(name: &str) -> Error {
    Error::new(Code::NotFound, format!("there is no lock `{name}`"))
}
