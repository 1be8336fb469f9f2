//! Tasks whose holder is dead, or whose time is up, go back by themselves.

use super::{Phase, Record, columns, save_set};
use crate::{
    clock::Time,
    db::{Tx, key_set},
    error::Result,
    lease::{Under, expiry::ITEMS},
    log::Event,
    params,
};

/// After this many reviews that came to nothing, an offer goes to the pool.
const REVIEWS: i64 = 3;

/// The rule. An attempt at the work was counted when it was claimed, and stays counted; at the last one the
/// task fails. A review gives nothing up.
pub(crate) fn lapse(task: &mut Record, now: Time) -> Event {
    let before = task.status();
    let Some(hold) = task.hold().cloned() else { return task.event("task.lapsed", before) };
    let why = hold.lost(now);
    let mut details = serde_json::json!({ "reason": why });
    task.updated_at = now;
    let (kind, next) = if matches!(task.phase, Phase::Reviewing(_)) {
        task.reviews += 1;
        if task.reviews >= REVIEWS {
            (task.offered_to, task.offered_at) = (None, None);
        }
        ("task.lapsed", if task.reviews >= REVIEWS { Phase::Unassigned } else { Phase::Offered })
    } else {
        task.lapsed = true;
        if task.attempts >= task.max_attempts {
            task.failure_reason = Some(format!(
                "{} attempts were made and lost; the last by run `{}`: {why}",
                task.attempts, hold.run
            ));
            // Its holder did not say so: if that was a lead, the leads are told.
            details["lapsed"] = true.into();
            ("task.failed", Phase::Failed(now))
        } else {
            task.failure_reason = Some(format!("run `{}` went silent: {why}", hold.run));
            ("task.lapsed", task.home())
        }
    };
    task.end_claim("lapse", &[], next);
    Event {
        run: Some(hold.run),
        agent: hold.agent,
        fence: Some(hold.fence),
        ..task.event(kind, before).details(details)
    }
}

/// The rule for a task that waits for an agent which was silent for too long: it is anyone's again.
pub(crate) fn recall(task: &mut Record, agent: &str, now: Time) -> Event {
    let before = task.status();
    task.phase = Phase::Unassigned;
    (task.assignee, task.offered_to, task.offered_at) = (None, None, None);
    task.updated_at = now;
    task.event("task.recalled", before).details(serde_json::json!({ "agent": agent }))
}

/// One batch of what these ended runs hold. No order is asked for: PostgreSQL would sort all of it for each batch.
pub(crate) async fn of_runs(tx: &mut Tx<'_>, runs: &[i64]) -> Result<u64> {
    let rows = tx
        .query(
            columns!(
                "where task.run in (select cast(value ->> 'k' as bigint) from json_each(?1)) limit ?2
                 /*pg for update of task skip locked*/"
            ),
            params![key_set(runs.iter().copied()), ITEMS],
        )
        .await?;
    give_back(tx, rows.into_iter().map(Record::read).collect::<Result<_>>()?).await
}

/// One batch of claims whose own end has come.
pub(crate) async fn end_capped(tx: &mut Tx<'_>) -> Result<u64> {
    let rows = tx
        .query(
            columns!("where task.until_at <= ?1 order by task.until_at limit ?2 /*pg for update of task skip locked*/"),
            params![tx.now, ITEMS],
        )
        .await?;
    give_back(tx, rows.into_iter().map(Record::read).collect::<Result<_>>()?).await
}

async fn give_back(tx: &mut Tx<'_>, mut tasks: Vec<Record>) -> Result<u64> {
    if tasks.is_empty() {
        return Ok(0);
    }
    tasks.sort_by_key(|task| task.seq);
    let mut events = Vec::with_capacity(tasks.len());
    let mut changes = Vec::with_capacity(tasks.len());
    for mut task in tasks {
        let was = task.was();
        events.push(lapse(&mut task, tx.now));
        changes.push((was, task));
    }
    let written = save_set(tx, &changes, Under::Nobody).await?.len() as u64;
    let events = Event::insert_many(tx, events)?;
    tx.one(events).await?;
    Ok(written)
}
