//! Writing a task's row.

use super::{Record, Was};
use crate::{
    clock::Time,
    db::{Batch, Slot, Stmt, Tx, Value, key_set, set},
    error::Result,
    lease::Under,
    params,
};

/// Writes a claim or a completion, which do not change the assignee or the offer. These are most of all writes, and a
/// quarter cheaper without the other columns. `?3` is the authority ([`Under::number`]), `?4` the run that it depends on.
const SAVE_CLAIM: &str = "
    update task set status = ?7, attempts = ?8, lapsed = ?9, run = ?10, fence = ?11, until_at = ?12, claimed_at = ?13,
      last_fence = ?14, last_verb = ?15, last_digest = ?16, failure_reason = ?17, updated_at = ?6, finished_at = ?18
    where seq = ?1 and fence = ?2
    and (?3 = 0 or 1 = (select 1 from run where key = ?4 and ended_at is null and expires_at > ?5))
    and (?3 < 2 or until_at is null or until_at > ?5)";

/// Writes any other change.
const SAVE: &str = "
    update task set status = ?7, attempts = ?8, lapsed = ?9, run = ?10, fence = ?11, until_at = ?12, claimed_at = ?13,
      last_fence = ?14, last_verb = ?15, last_digest = ?16, failure_reason = ?17, updated_at = ?6, finished_at = ?18,
      assignee = ?19, offered_to = ?20, offered_at = ?21, accepted_at = ?22, rejection_reason = ?23, parked = ?24,
      delayed_until = ?25, reviews = ?26
    where seq = ?1 and fence = ?2
    and (?3 = 0 or 1 = (select 1 from run where key = ?4 and ended_at is null and expires_at > ?5))
    and (?3 < 2 or until_at is null or until_at > ?5)";

/// The one write of a transition. No row is written if the fence changed, or if the claim that it depends on is dead.
pub(crate) fn save(batch: &mut Batch, was: &Was, after: &Record, under: Under, now: Time) -> Slot {
    let only_claim = was.phase.leads_straight_to(&after.phase);
    let saved = batch.add(update(was, after, under, now, only_claim));
    if !after.tags.is_empty() && was.ready != after.ready() {
        batch.add(sync_tags(key_set([after.seq])));
    }
    saved
}

fn update(was: &Was, after: &Record, under: Under, now: Time, only_claim: bool) -> Stmt {
    let (hold, last) = (after.hold(), after.last.as_ref());
    let holder = if under == Under::NewClaim { hold } else { was.phase.hold() };
    let mut params = params![
        after.seq,
        was.fence,
        under.number(),
        holder.map(|hold| hold.run_key),
        now,
        after.updated_at,
        after.status().as_str(),
        after.attempts,
        after.lapsed,
        hold.map(|hold| hold.run_key),
        after.fence,
        hold.and_then(|hold| hold.until),
        hold.map(|hold| hold.claimed_at),
        last.map(|last| last.fence),
        last.map(|last| last.verb.as_str()),
        last.map(|last| last.digest.as_str()),
        after.failure_reason.as_deref(),
        after.phase.finished_at(),
    ];
    if only_claim {
        return Stmt::write(SAVE_CLAIM, params);
    }
    params.extend(params![
        after.assignee.as_deref(),
        after.offered_to.as_deref(),
        after.offered_at,
        after.accepted_at,
        after.rejection_reason.as_deref(),
        after.parked.as_deref(),
        after.delayed_until,
        after.reviews,
    ]);
    Stmt::write(SAVE, params)
}

/// Updates the tags' copies of `ready` for the tasks of this key set.
pub(super) fn sync_tags(keys: Value) -> Stmt {
    Stmt::write(
        "update task_tag set ready = (select ready from task where seq = task_tag.task)
         where task in (select cast(value ->> 'k' as bigint) from json_each(?1))",
        params![keys],
    )
}

/// Many transitions in one statement. The caller holds the row locks; claims that are used or made must be alive, as in
/// [`save()`]. Returns the `seq` of each row that was written.
pub(crate) async fn save_set(tx: &mut Tx<'_>, changes: &[(Was, Record)], under: Under) -> Result<Vec<i64>> {
    let rows = changes.iter().map(|(was, after)| {
        let (hold, last) = (after.hold(), after.last.as_ref());
        let holder = if under == Under::NewClaim { hold } else { was.phase.hold() };
        serde_json::json!({
            "seq": after.seq, "was": was.fence, "holder": holder.map(|hold| hold.run_key),
            "status": after.status().as_str(), "assignee": after.assignee, "offered_to": after.offered_to,
            "offered_at": after.offered_at.map(|t| t.0), "attempts": after.attempts, "reviews": after.reviews,
            "lapsed": i64::from(after.lapsed), "delayed_until": after.delayed_until.map(|t| t.0),
            "run": hold.map(|hold| hold.run_key), "fence": after.fence,
            "until": hold.and_then(|hold| hold.until).map(|t| t.0), "claimed_at": hold.map(|hold| hold.claimed_at.0),
            "last_fence": last.map(|last| last.fence), "last_verb": last.map(|last| &last.verb),
            "last_digest": last.map(|last| &last.digest), "failure_reason": after.failure_reason,
            "finished_at": after.phase.finished_at().map(|t| t.0),
        })
    });
    let rows = set(rows)?;
    let written = tx
        .execute_returning(
            "update task set status = item.value ->> 'status', assignee = item.value ->> 'assignee',
               offered_to = item.value ->> 'offered_to', offered_at = cast(item.value ->> 'offered_at' as bigint),
               attempts = cast(item.value ->> 'attempts' as bigint),
               reviews = cast(item.value ->> 'reviews' as bigint), lapsed = cast(item.value ->> 'lapsed' as bigint),
               delayed_until = cast(item.value ->> 'delayed_until' as bigint),
               run = cast(item.value ->> 'run' as bigint), fence = cast(item.value ->> 'fence' as bigint),
               until_at = cast(item.value ->> 'until' as bigint),
               claimed_at = cast(item.value ->> 'claimed_at' as bigint),
               last_fence = cast(item.value ->> 'last_fence' as bigint), last_verb = item.value ->> 'last_verb',
               last_digest = item.value ->> 'last_digest', failure_reason = item.value ->> 'failure_reason',
               finished_at = cast(item.value ->> 'finished_at' as bigint), updated_at = ?2
             from json_each(?1) as item
             where task.seq = cast(item.value ->> 'seq' as bigint)
             and task.fence = cast(item.value ->> 'was' as bigint)
             and (?3 = 0 or 1 = (select 1 from run where key = cast(item.value ->> 'holder' as bigint)
               and ended_at is null and expires_at > ?2))
             and (?3 < 2 or until_at is null or until_at > ?2)
             returning task.seq",
            params![rows, tx.now, under.number()],
        )
        .await?;
    let written = written.iter().map(|row| row.get("seq")).collect::<Result<Vec<i64>>>()?;
    let moved = |(was, after): &&(Was, Record)| !after.tags.is_empty() && was.ready != after.ready();
    let tagged: Vec<i64> = changes.iter().filter(moved).map(|(_, after)| after.seq).collect();
    if !tagged.is_empty() {
        tx.one(sync_tags(key_set(tagged))).await?;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Millis,
        ids::TaskId,
        lease::Hold,
        ops::{
            agent,
            task::{self, Purpose, claim, done, lapse, load, release},
            testing::{on_both, rows, try_write, undo},
        },
    };

    /// A claim and a completion write fewer columns, and a set of tasks is written by another statement.
    #[tokio::test]
    async fn every_statement_that_saves_writes_the_same_row() {
        on_both(
            |tx| {
                Box::pin(async {
                    for title in ["free", "held", "reviewed", "assigned"] {
                        tx.call(task::Add::new("b", title)).await?;
                    }
                    // Both have a reason of failure, which a claim keeps and a completion clears.
                    for id in ["b-1", "b-2"] {
                        let token = tx.call(task::Claim::of(id, "r")).await?.claim.token;
                        let fail = task::Fail { retry: true, ..task::Fail::new(token, "no") };
                        tx.call(task::Fail { delay_ms: Some(Millis(0)), ..fail }).await?;
                    }
                    let max_ms = Some(Millis::minutes(1));
                    tx.call(task::Claim { max_ms, ..task::Claim::of("b-2", "r") }).await?;
                    tx.call(agent::Join { agent: "ann".into(), ..Default::default() }).await?;
                    let to = || "ann".to_owned();
                    tx.call(task::Offer { task: "b-3".into(), to: to(), ..Default::default() }).await?;
                    tx.call(task::Claim { agent: Some(to()), ..task::Claim::of("b-3", "s") }).await?;
                    tx.execute("update task set reviews = 2 where n = 3", params![]).await?;
                    tx.call(task::Assign { task: "b-4".into(), to: to(), ..Default::default() })
                        .await
                        .map(drop)
                })
            },
            |tx| Box::pin(async { every_transition(tx).await }),
        )
        .await;
    }

    async fn every_transition(tx: &mut Tx<'_>) -> Result<()> {
        let now = tx.now;
        let mut tasks = Vec::new();
        for n in 1..=4 {
            tasks.push(load(tx, &TaskId { board: "b".into(), n }).await?.expect("a task"));
        }
        let [free, held, reviewed, assigned] = <[Record; 4]>::try_from(tasks).expect("four");
        let run_key = held.hold().expect("a hold").run_key;
        let hold = Hold { run_key, claimed_at: now, ..Hold::sample("r", free.fence + 1, now) };
        let changed = |task: &Record, change: &dyn Fn(&mut Record)| {
            let mut after = Record { updated_at: now, ..task.clone() };
            change(&mut after);
            after
        };
        let last_attempt = Record { attempts: held.max_attempts, ..held.clone() };
        let transitions = [
            (&free, claim::claimed(free.clone(), Purpose::Work, hold, now), Under::NewClaim),
            (&held, done::complete(held.clone(), Some("it works"), now), Under::Claim),
            (&held, changed(&held, &|task| release::give_back(task, "release", &[None])), Under::Claim),
            (&held, changed(&held, &|task| drop(lapse::lapse(task, now))), Under::NoClaim),
            (&held, changed(&last_attempt, &|task| drop(lapse::lapse(task, now))), Under::NoClaim),
            (&reviewed, changed(&reviewed, &|task| drop(lapse::lapse(task, now))), Under::NoClaim),
            (&assigned, changed(&assigned, &|task| drop(lapse::recall(task, "ann", now))), Under::NoClaim),
        ];
        let untouched = rows(tx, "*", "task").await?;
        for (before, after, under) in transitions {
            let was = before.was();
            let mut written = Vec::new();
            for only_claim in [was.phase.leads_straight_to(&after.phase), false] {
                try_write(tx).await?;
                assert_eq!(tx.one(update(&was, &after, under, now, only_claim)).await?.affected, 1);
                written.push(rows(tx, "*", "task").await?);
                undo(tx).await?;
            }
            try_write(tx).await?;
            assert_eq!(save_set(tx, &[(was, after.clone())], under).await?.len(), 1);
            written.push(rows(tx, "*", "task").await?);
            undo(tx).await?;
            assert_ne!(written[0], untouched, "{after:?}");
            assert_eq!(written[0], written[1], "SAVE_CLAIM and SAVE: {after:?}");
            assert_eq!(written[0], written[2], "SAVE and save_set: {after:?}");
        }
        Ok(())
    }
}
