//! Giving a task back: by its token, or by an operator. The attempt does not count.

use super::{
    Lock, Phase, Record, Was, claimable::task_id, columns, load_locked, load_set, not_found, save, save_set,
};
use crate::{
    clock::Millis,
    db::{Batch, Delivered, Tx, by_keys},
    error::{Error, Result},
    ids::{TaskId, Token},
    lease::claimable::Unclaimed,
    lease::{
        Hold, Under,
        expiry::ITEMS,
        hold::{check_written, is_repeat, require, write_logged},
    },
    log::Event,
    params,
};
use std::collections::HashMap;

/// The rule: the task goes back to the pool, to its assignee, or to the agent it is offered to.
pub(super) fn give_back(task: &mut Record, verb: &str, content: &[Option<&str>]) {
    let next = match task.phase {
        Phase::Reviewing(_) => Phase::Offered,
        _ => {
            task.attempts -= 1;
            task.home()
        }
    };
    task.end_claim(verb, content, next);
}

/// The task is given back. `delay`: nobody can claim it for this long; an offer has no delay. `verb`: stored as the end of the claim.
pub(crate) async fn release(
    tx: &mut Tx<'_>,
    id: &TaskId,
    token: &Token,
    note: Option<&str>,
    delay: Option<Millis>,
    verb: &str,
) -> Result<String> {
    let found = load_locked(tx, id).await?;
    if let Some(task) = &found
        && is_repeat(tx, task.last.as_ref(), token, verb, &[note])?
    {
        return Ok(task.status().as_str().into());
    }
    require(found.as_ref().map(Record::claim_state).as_ref(), token, tx.now)?;
    let found = found.ok_or_else(|| not_found(id))?;
    let mut task = Record { updated_at: tx.now, ..found.clone() };
    give_back(&mut task, verb, &[note]);
    task.lapsed = false;
    if !matches!(task.phase, Phase::Offered) {
        task.delayed_until = delay.filter(|delay| delay.0 > 0).map(|delay| tx.now.plus(delay));
    }
    let mut batch = Batch::new();
    let saved = save(&mut batch, &found.was(), &task, Under::Claim, tx.now);
    batch.add(ended(&task, &found.was(), "task.released", None).insert(tx));
    if let (Some(note), Some(hold)) = (note, found.hold()) {
        batch.add(super::note::insert(tx, task.seq, "note", Some(hold), note));
    }
    check_written(tx.send(batch).await?.affected(saved), token)?;
    Ok(task.status().as_str().into())
}

/// Gives back tasks whose claims did not arrive, except for those that were delivered again since. Returns
/// their number.
pub(crate) async fn return_undelivered(tx: &mut Tx<'_>, delivered: &[&Delivered]) -> Result<u64> {
    let mut handed = HashMap::with_capacity(delivered.len());
    for delivered in delivered {
        handed.insert(task_id(delivered.token.resource.id())?, *delivered);
    }
    let found = load_set(tx, handed.keys(), Lock::ToWrite).await?;
    let mut changes = Vec::new();
    for (id, task) in found {
        let is_same = |hold: &Hold| hold.fence == handed[&id].token.fence && hold.is_alive(tx.now);
        if task.hold().is_some_and(is_same) && task.delivery == handed[&id].delivery {
            let mut back = Record { updated_at: tx.now, ..task.clone() };
            give_back(&mut back, "undeliver", &[]);
            changes.push((task.was(), back));
        }
    }
    if changes.is_empty() {
        return Ok(0);
    }
    if save_set(tx, &changes, Under::Claim).await?.len() < changes.len() {
        return Err(Error::raced("a run ended at this moment"));
    }
    let events = changes.iter().map(|(was, back)| ended(back, was, "task.undelivered", None)).collect();
    tx.one(Event::insert_many(tx, events)?).await?;
    Ok(changes.len() as u64)
}

pub(crate) async fn unclaim(tx: &mut Tx<'_>, id: &TaskId, reason: Option<&str>) -> Result<Unclaimed> {
    let found = load_locked(tx, id).await?.ok_or_else(|| not_found(id))?;
    let Some(hold) = found.hold() else {
        return Ok(Unclaimed { held_by: None, status: found.status().as_str().into() });
    };
    let run = hold.run.clone();
    let mut task = Record { updated_at: tx.now, ..found.clone() };
    if !hold.is_alive(tx.now) {
        // The claim was lost already: the attempt counts.
        let lapsed = super::lapse::lapse(&mut task, tx.now);
        let mut batch = Batch::new();
        save(&mut batch, &found.was(), &task, Under::NoClaim, tx.now);
        batch.add(lapsed.insert(tx));
        tx.send(batch).await?;
        return Ok(Unclaimed { held_by: None, status: task.status().as_str().into() });
    }
    give_back(&mut task, "unclaim", &[]);
    let details = reason.map(|reason| serde_json::json!({ "reason": reason }));
    let mut batch = Batch::new();
    save(&mut batch, &found.was(), &task, Under::NoClaim, tx.now);
    // The event's agent is the caller, not the holder.
    let event = Event { agent: None, ..ended(&task, &found.was(), "task.unclaimed", details) };
    batch.add(event.insert(tx));
    tx.send(batch).await?;
    Ok(Unclaimed { held_by: Some(run), status: task.status().as_str().into() })
}

/// How often a task gives an attempt back because its holder's terminal or agent is gone. Without a limit,
/// a task that kills every holder would be claimed for ever.
const GIVEN_BACK_MAX: i64 = 10;

/// Takes away the tasks of a living run whose terminal or agent is gone. Tasks that were given back too
/// often, or that another transaction has locked, stay, and lapse with the run.
pub(crate) async fn unclaim_of(tx: &mut Tx<'_>, run_key: i64, reason: &str) -> Result<()> {
    let held = columns!(
        "where task.run = ?1 and task.given_back < ?2 limit ?3 /*pg for update of task skip locked*/"
    );
    let rows = tx.query(held, params![run_key, GIVEN_BACK_MAX, ITEMS]).await?;
    let mut held = rows.into_iter().map(Record::read).collect::<Result<Vec<_>>>()?;
    // A claim past its own limit was lost already.
    held.retain(|task| task.hold().is_some_and(|hold| hold.is_alive(tx.now)));
    if held.is_empty() {
        return Ok(());
    }
    held.sort_by_key(|task| task.seq);
    let mut changes = Vec::with_capacity(held.len());
    for task in held {
        let mut back = Record { updated_at: tx.now, ..task.clone() };
        give_back(&mut back, "unclaim", &[]);
        changes.push((task.was(), back));
    }
    let written = save_set(tx, &changes, Under::NoClaim).await?;
    let details = serde_json::json!({ "reason": reason });
    // The events' agent is the caller, not the holder.
    let unclaimed = |(was, back): &(Was, Record)| Event {
        agent: None,
        ..ended(back, was, "task.unclaimed", Some(details.clone()))
    };
    let events = changes.iter().map(unclaimed);
    let events = Event::insert_many(tx, events.collect())?;
    let count =
        by_keys!(write, written.as_slice(), "update task set given_back = given_back + 1 where seq", "");
    write_logged(tx, count, events).await.map(drop)
}

/// An event of an ended claim: it names the run and the fence, which the task no longer carries.
pub(crate) fn ended(
    task: &Record,
    was: &Was,
    kind: &'static str,
    details: Option<serde_json::Value>,
) -> Event {
    let hold = was.phase.hold();
    Event {
        run: hold.map(|hold| hold.run.clone()),
        agent: hold.and_then(|hold| hold.agent.clone()),
        fence: hold.map(|hold| hold.fence),
        details,
        ..task.event(kind, was.phase.status())
    }
}
