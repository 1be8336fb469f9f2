//! Tasks whose holder is dead, or whose claim has reached its own limit, go back automatically.

use super::{Phase, Record, columns, save_set};
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
            // The holder did not report this failure: if the holder was a lead, the leads are notified.
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

/// The rule for a task whose agent was silent for too long: it goes back to the pool.
pub(crate) fn recall(task: &mut Record, agent: &str, now: Time) -> Event {
    let before = task.status();
    task.phase = Phase::Unassigned;
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
pub(crate) async fn at_limit(tx: &mut Tx<'_>) -> Result<u64> {
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
    let written = save_set(tx, &changes, Under::NoClaim).await?.len() as u64;
    let events = Event::insert_many(tx, events)?;
    tx.one(events).await?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{lease::Hold, ops::task::Status};

    #[test]
    fn a_lost_claim_gives_the_task_back_until_it_was_lost_too_often() {
        let now = Time(10);
        let lost = || Hold::sample("r", 1, now);
        let working = |attempts| Record { attempts, ..Record::sample(Phase::InProgress(lost())) };
        let reviewing = |reviews| Record {
            reviews,
            offered_to: Some("ann".into()),
            ..Record::sample(Phase::Reviewing(lost()))
        };
        let assigned = Record { assignee: Some("ann".into()), ..working(2) };
        // Status, event, attempts and reviews after it.
        let cases = [
            (working(1), Status::Unassigned, "task.lapsed", 1, 0),
            (working(2), Status::Unassigned, "task.lapsed", 2, 0),
            (working(3), Status::Failed, "task.failed", 3, 0),
            (assigned, Status::Pending, "task.lapsed", 2, 0),
            (reviewing(0), Status::Offered, "task.lapsed", 1, 1),
            (reviewing(1), Status::Offered, "task.lapsed", 1, 2),
            (reviewing(2), Status::Unassigned, "task.lapsed", 1, 3),
        ];
        for (mut task, status, kind, attempts, reviews) in cases {
            let before = format!("{task:?}");
            let was_working = matches!(task.phase, Phase::InProgress(_));
            let event = lapse(&mut task, now);
            assert_eq!((task.status(), event.kind), (status, kind), "{before}");
            assert_eq!((task.attempts, task.reviews), (attempts, reviews), "{before}");
            assert_eq!((event.run.as_deref(), event.fence), (Some("r"), Some(1)), "{before}");
            let last = task.last.as_ref().expect("how the claim ended");
            assert_eq!((last.fence, last.verb.as_str()), (1, "lapse"), "{before}");
            assert_eq!(task.lapsed, was_working, "{before}");
            assert_eq!(task.failure_reason.is_some(), was_working, "{before}");
            assert_eq!(task.offered_to.is_some(), status == Status::Offered, "{before}");
        }
    }

    #[test]
    fn the_event_says_why_the_claim_was_lost() {
        let hold = || Hold::sample("r", 1, Time(10));
        for (hold, at, why) in [
            (hold(), 10, "its lease was over"),
            (Hold { run_ended_at: Some(Time(5)), ..hold() }, 6, "its run ended"),
            (Hold { until: Some(Time(7)), ..hold() }, 7, "its time was up"),
        ] {
            let mut task = Record::sample(Phase::InProgress(hold));
            let event = lapse(&mut task, Time(at));
            assert_eq!(event.details.expect("details")["reason"], why);
            assert_eq!(task.failure_reason.as_deref(), Some(&*format!("run `r` went silent: {why}")));
        }
    }
}
