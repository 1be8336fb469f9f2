use crate::{
    caller::Access,
    db::{Batch, Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    lease::claimable::Promise,
    ops::nouns,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Check the database file, and the stored data against the fleet's promises. List every violation.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    pub ok: bool,
    /// Number of promises that were checked.
    pub checked: usize,
    pub violations: Vec<Violation>,
    /// Damage that the database found in its own file. Then no promise was checked, because reads are unreliable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damage: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Violation {
    /// The promise that is broken.
    pub promise: String,
    /// The resource that breaks it.
    pub resource: String,
}

/// The promises that do not belong to one claimable noun.
const PROMISES: &[Promise] = &[
    Promise {
        text: "at most one run of a name has not ended",
        broken: "select 'run/' || name as resource from run where ended_at is null group by name having count(*) > 1",
    },
    Promise {
        text: "attempts stay within their limits",
        broken: "select 'task/' || board || '-' || n as resource from task where attempts < 0 or attempts > max_attempts
         union all
         select 'message/' || id as resource from message where attempts < 0 or attempts > max_attempts",
    },
    Promise {
        text: "a run with a trigger has an agent and the list of its claims",
        broken: "select 'run/' || name as resource from run
         where (trigger_type is null) <> (given is null) or (trigger_type is not null and agent is null)",
    },
    Promise {
        text: "every agent that has not left has a deadline for going silent",
        broken: "select 'agent/' || name as resource from agent where strands_at is null and left_at is null",
    },
    Promise {
        text: "every story of an active loop has its task, and a loop has an end if and only if it is not active",
        broken: "select 'loop/' || story.loop || '/' || story.id as resource from story join loop on loop.id = story.loop
         where loop.ended_at is null and story.given is null
         and not exists (select 1 from task where task.seq = story.task)
         union all
         select 'loop/' || id as resource from loop where (ended_at is null) <> (status = 'active')",
    },
    Promise {
        text: "no story of a loop that is over is held",
        broken: "select 'task/' || task.board || '-' || task.n as resource from story join loop on loop.id = story.loop
         join task on task.seq = story.task where loop.ended_at is not null and task.run is not null",
    },
    Promise {
        text: "every recorded step has its story",
        broken: "select 'loop/' || loop || '/' || story as resource from story_step where not exists (
           select 1 from story where story.loop = story_step.loop and story.id = story_step.story)",
    },
    Promise {
        text: "an agent has at most one unfinished wake-up in a channel, in its own mailbox",
        broken: "select 'mentions/' || wakeup.agent || '/' || wakeup.channel as resource from wakeup
         join message on message.id = wakeup.message where message.finished_at is null
         group by wakeup.agent, wakeup.channel having count(*) > 1
         union all
         select 'message/' || message.id as resource from wakeup join message on message.id = wakeup.message
         where message.mailbox <> 'wakeups/' || wakeup.agent",
    },
    Promise {
        text: "no mark of an unread post is past the last post",
        broken: "select 'channel/' || channel.name as resource from channel where marked_n >= next_n
         union all
         select 'mentions/' || reader.agent || '/' || reader.channel as resource from reader
         join channel on channel.name = reader.channel where reader.wake_n >= channel.next_n",
    },
    Promise {
        text: "every delivery from outside became a message",
        broken: "select 'delivery/' || source || '/' || id as resource from delivery where message is null",
    },
];

/// Violations listed per promise: enough to see the problem.
const EACH: usize = 20;

impl Op for Check {
    const NAME: &'static str = "admin/check";
    /// It reads every table, so a reader could overload the database with it.
    const ACCESS: Access = Access::Admin;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Report;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Report> {
        let damage = tx.damage().await?;
        if !damage.is_empty() {
            return Ok(Report { ok: false, checked: 0, violations: Vec::new(), damage });
        }
        let promises: Vec<&Promise> = PROMISES.iter().chain(nouns().promises()).collect();
        let mut batch = Batch::new();
        let checks: Vec<_> =
            promises.iter().map(|promise| batch.add(Stmt::read(promise.broken, params![]))).collect();
        let mut answers = tx.send(batch).await?;
        let mut violations = Vec::new();
        for (promise, check) in promises.iter().zip(checks) {
            for row in answers.take(check).rows.iter().take(EACH) {
                violations.push(Violation { promise: promise.text.into(), resource: row.get("resource")? });
            }
        }
        Ok(Report { ok: violations.is_empty(), checked: promises.len(), violations, damage })
    }
}
