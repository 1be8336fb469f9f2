//! Tasks whose holder is dead, or whose claim has reached its own limit, go back automatically.

use super::{Record, Status, columns, save_set};
use crate::{
    clock::Time,
    db::{Tx, key_set},
    error::Result,
    lease::{Under, expiry::ITEMS},
    log::Event,
    params,
};

/// After this many reviews without a decision, an offer goes back to the pool.
const REVIEWS: i64 = 3;

/// The rule. An attempt counts from its claim and stays counted; after the last one the task fails. A
/// review does not count as an attempt.
pub(crate) fn lapse(task: &mut Record, now: Time) -> Event {
    let before = task.status;
    let Some(hold) = task.hold.clone() else { return task.event("task.lapsed", before) };
    let why = hold.lost(now);
    task.end_claim("lapse", &[]);
    task.updated_at = now;
    if before == Status::Reviewing {
        task.reviews += 1;
        task.status = Status::Offered;
        if task.reviews >= REVIEWS {
            task.status = Status::Unassigned;
            (task.offered_to, task.offered_at) = (None, None);
        }
    } else {
        task.lapsed = true;
        task.failure_reason = Some(format!("run `{}` went silent: {why}", hold.run));
        task.status = task.home();
        if task.attempts >= task.max_attempts {
            task.status = Status::Failed;
            task.finished_at = Some(now);
            task.failure_reason = Some(format!(
                "{} attempts were made and lost; the last by run `{}`: {why}",
                task.attempts, hold.run
            ));
        }
    }
    let kind = if task.status == Status::Failed { "task.failed" } else { "task.lapsed" };
    let mut details = serde_json::json!({ "reason": why });
    if task.status == Status::Failed {
        // The holder did not report this failure: if the holder was a lead, the leads are notified.
        details["lapsed"] = true.into();
    }
    Event {
        run: Some(hold.run),
        agent: hold.agent,
        fence: Some(hold.fence),
        ..task.event(kind, before).details(details)
    }
}

/// The rule for a task whose agent was silent for too long: it goes back to the pool.
pub(crate) fn recall(task: &mut Record, agent: &str, now: Time) -> Event {
    let before = task.status;
    task.status = Status::Unassigned;
    (task.assignee, task.offered_to, task.offered_at) = (None, None, None);
    task.updated_at = now;
    task.event("task.recalled", before).details(serde_json::json!({ "agent": agent }))
}

/// One batch of the items of these ended runs. Unordered: PostgreSQL would sort all of them for each batch.
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

/// One batch of claims that reached their own limit (`max_ms`).
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
