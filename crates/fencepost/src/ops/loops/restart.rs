use super::{LoopStatus, Story, cancel::Changed, plan::check_name, row::Loop};
use crate::{
    caller::Access,
    db::{Batch, Stmt, Tx, key_set, set},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    lease::Under,
    limits::{TEXT_MAX, check},
    log::Event,
    ops::task::save_set,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Run the stories of a loop again that have not passed, from their first step and with all their retries. Claims on them end, so a
/// chain that runs is refused. A loop that is over becomes active again.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Restart {
    #[serde(rename = "loop")]
    pub id: String,
    #[serde(default)]
    pub reason: Option<String>,
    /// Request id: repeating the call with the same id changes nothing.
    #[serde(default)]
    pub request: Option<String>,
}

impl Op for Restart {
    const NAME: &'static str = "loop/restart";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"loop":"auth-v1"}"#;
    refuses![AlreadyFinished];
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        check_name("loop", &self.id)?;
        check::request(self.request.as_deref())?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        let mut found = Loop::locked(tx, &self.id).await?;
        if tx.opening.is_repeat("loop.restarted", None)? {
            return Ok(Changed { brief: found.brief(tx.now), stories: found.views(tx.now) });
        }
        found.lock_tasks(tx, 0..found.stories.len()).await?;
        let (mut changes, mut events, mut again) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..found.stories.len() {
            let row = &mut found.stories[n];
            let Some(task) = row.task.as_mut().filter(|_| row.given.is_none()) else { continue };
            if task.status() == crate::ops::task::Status::Completed {
                continue;
            }
            let was = task.was();
            let hold = was.phase.hold();
            let (run, fence) = (hold.map(|hold| hold.run.clone()), hold.map(|hold| hold.fence));
            let home = task.home();
            task.end_claim("restart", &[], home);
            (task.attempts, task.lapsed, task.delayed_until, task.updated_at) = (0, false, None, tx.now);
            task.failure_reason = None;
            events.push(Event { agent: None, run, fence, ..task.event("task.retried", was.phase.status()) });
            changes.push((was, task.clone()));
            (row.retries, row.feedback, row.skipped_by, row.commit) = (0, None, None, None);
            row.round_after = changes.last().map_or(0, |(was, _)| was.fence);
            again.push(n);
        }
        if again.is_empty() {
            let message = format!("no story of loop `{}` is left to be run again", self.id);
            return Err(
                Error::new(Code::AlreadyFinished, message).hint("start another loop under an id of its own")
            );
        }
        save_set(tx, &changes, Under::NoClaim).await?;
        let from = std::mem::replace(&mut found.status, LoopStatus::Active);
        (found.reason, found.ended_at, found.iterations) = (None, None, 0);
        let mut batch: Batch = again.iter().map(|n| found.save_story(*n)).collect();
        batch.add(Event::insert_many(tx, events)?);
        // A new round has no steps, and every story that runs again begins with round 0.
        batch.add(Stmt::write(
            "delete from story_step where loop = ?1 and story in (select id from story where loop = ?1 and task in (
               select cast(value ->> 'k' as bigint) from json_each(?2)))",
            params![&self.id, key_set(changes.iter().map(|(_, task)| task.seq))],
        ));
        batch.add(Stmt::write(
            "update task set told = 0 where told = 1 and finished_at is null
             and seq in (select cast(value ->> 'k' as bigint) from json_each(?1))",
            params![key_set(changes.iter().map(|(_, task)| task.seq))],
        ));
        batch.add(Stmt::write(
            "update loop set status = 'active', reason = null, ended_at = null, summary = null, iterations = 0 where id = ?1",
            params![&self.id],
        ));
        let details = json!({ "stories": again.len() });
        let event = found.event("loop.restarted", from).details(details).because(self.reason.as_deref());
        batch.add(event.insert(tx));
        tx.send(batch).await?;
        if found.plan.run_dependents {
            wait_again(tx, &self.id, &found.plan.stories).await?;
            found = Loop::find(tx, &self.id).await?.ok_or_else(|| super::not_found(&self.id))?;
        }
        Ok(Changed { brief: found.brief(tx.now), stories: found.views(tx.now) })
    }
}

/// Stories wait again for those that were skipped, and that they no longer waited for.
async fn wait_again(tx: &mut Tx<'_>, id: &str, stories: &[Story]) -> Result<()> {
    let waits = |story: &Story| {
        story.after.iter().map(|on| json!({ "story": story.id, "on": on })).collect::<Vec<_>>()
    };
    let edges = set(stories.iter().flat_map(waits).collect::<Vec<_>>())?;
    let insert = Stmt::write(
        "insert into edge(task, depends_on)
         select waiting.task, other.task from json_each(?2) as item
         join story as waiting on waiting.loop = ?1 and waiting.id = item.value ->> 'story'
         join story as other on other.loop = ?1 and other.id = item.value ->> 'on'
         join task on task.seq = waiting.task
         where other.task is not null and task.finished_at is null
         on conflict do nothing",
        params![id, edges],
    );
    let count = Stmt::write(
        "update task set waiting_on = (
           select count(*) from edge join task as other on other.seq = edge.depends_on
           where edge.task = task.seq and other.status <> 'completed')
         where finished_at is null and seq in (select task from story where loop = ?1)",
        params![id],
    );
    tx.send(Batch::from([insert, count])).await?;
    Ok(())
}
