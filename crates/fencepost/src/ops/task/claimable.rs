//! `Claimable` for tasks.

use super::{Done, Fail, Now, Record, end_delays, lapse, load, release};
use crate::{
    db::{BoxFuture, Delivered, Stmt, Tx},
    error::{Code, Error, Result},
    ids::{TaskId, Token},
    lease::{
        ClaimState, Claimable,
        claimable::{Outcome, Promise, Settlement, Table, Unclaimed},
        delivery::Redelivery,
    },
    ops::agent,
    params,
};

#[derive(Debug)]
pub(crate) struct Tasks;

/// Parses the id of a stored token.
pub(super) fn task_id(id: &str) -> Result<TaskId> {
    id.parse().map_err(|problem: String| Error::new(Code::Invalid, problem))
}

impl Claimable for Tasks {
    fn noun(&self) -> &'static str {
        "task"
    }
    fn table(&self) -> &'static Table {
        &Table {
            name: "task",
            id: "task.board || '-' || task.n",
            order: "task.seq",
            sort: ("task.board", "task.n"),
            deadlines: &[
                "(select min(delayed_until) from task where delayed_until is not null)",
                // An agent that is silent for too long: its tasks go back to the pool.
                "(select min(strands_at) from agent where strands_at is not null)",
            ],
        }
    }
    fn id_problem(&self, id: &str) -> Option<String> {
        id.parse::<TaskId>().err()
    }
    fn run_behind(&self, id: &str, fence: i64) -> Stmt {
        let TaskId { board, n } = task_id(id).unwrap_or(TaskId { board: id.into(), n: 0 });
        Stmt::read(
            "select run.key, run.name, run.agent, ttl_ms, opened_at, expires_at, ended_at, reason
     from task join run on run.key = task.run where task.board = ?1 and task.n = ?2 and task.fence = ?3",
            params![board, n, fence],
        )
    }
    fn claim_state<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        id: &'t str,
    ) -> BoxFuture<'t, Result<Option<ClaimState>>> {
        Box::pin(async move { Ok(load(tx, &task_id(id)?).await?.as_ref().map(Record::claim_state)) })
    }
    fn claim_state_now<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        id: &'t str,
    ) -> BoxFuture<'t, Result<Option<ClaimState>>> {
        Box::pin(async move {
            let Some(task) = load(tx, &task_id(id)?).await? else { return Ok(None) };
            Ok(Some(Now::read(tx).await?.of(task).claim_state()))
        })
    }
    fn lapse_of_runs<'t>(&'t self, tx: &'t mut Tx<'_>, runs: &'t [i64]) -> BoxFuture<'t, Result<u64>> {
        Box::pin(lapse::of_runs(tx, runs))
    }
    fn lapse_at_limit<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<u64>> {
        Box::pin(lapse::at_limit(tx))
    }
    fn end_delays<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<u64>> {
        Box::pin(async move {
            let woken = end_delays(tx).await?;
            // Last, because a silent agent also loses tasks that the batch just gave back to it. `Now` has
            // the same order.
            Ok(woken + agent::recall::strand(tx).await?)
        })
    }
    fn release<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        token: &'t Token,
        note: Option<&'t str>,
    ) -> BoxFuture<'t, Result<String>> {
        Box::pin(async move {
            let id = task_id(token.resource.id())?;
            release::release(tx, &id, token, note, None, "release").await
        })
    }
    fn unclaim<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        id: &'t str,
        reason: Option<&'t str>,
    ) -> BoxFuture<'t, Result<Unclaimed>> {
        Box::pin(async move { release::unclaim(tx, &task_id(id)?, reason).await })
    }
    fn return_undelivered<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        delivered: &'t [&'t Delivered],
    ) -> BoxFuture<'t, Result<u64>> {
        Box::pin(release::return_undelivered(tx, delivered))
    }
    fn settle<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        token: &'t Token,
        settlement: &'t Settlement,
    ) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move {
            let text = token.to_string();
            match settlement.outcome {
                Outcome::Done => {
                    unless_undecided(tx.part(Done { token: text, output: settlement.output.clone() }).await)
                }
                Outcome::Failed => {
                    let fail = Fail {
                        retry: true,
                        delay_ms: settlement.delay,
                        ..Fail::new(text, settlement.reason.clone())
                    };
                    unless_undecided(tx.part(fail).await)
                }
                Outcome::Released => {
                    let (id, writes) = (task_id(token.resource.id())?, tx.notes.writes);
                    let released =
                        release::release(tx, &id, token, None, settlement.delay, settlement.release_verb)
                            .await;
                    tx.part_of("the release", writes, released).map(|_| false)
                }
            }
        })
    }
    fn ended_by_holder(&self) -> &'static [&'static str] {
        &[
            "task.completed",
            "task.failed",
            "task.retrying",
            "task.released",
            "task.accepted",
            "task.rejected",
            "task.skipped",
        ]
    }
    fn is_expiry(&self, verb: &str, _from: Option<&str>, reported: bool) -> bool {
        verb == "lapsed" || (verb == "failed" && !reported)
    }
    fn promises(&self) -> &'static [Promise] {
        PROMISES
    }
}

/// Ignores a review without a decision: the end of its run, which follows, gives the offer back and counts it.
fn unless_undecided<T>(answer: Result<T>) -> Result<bool> {
    match answer {
        Err(e) if e.code() == Code::NotReady => Ok(false),
        answer => answer.map(|_| true),
    }
}

/// Delivers claims again, by the tasks' `seq`.
pub(crate) const REDELIVERY: Redelivery = Redelivery {
    lock: "select 1 from task where seq in (select cast(value ->> 'k' as bigint) from json_each(?1)) order by seq for update",
    raise: "update task set delivery = delivery + 1 from json_each(?1) as item
            where task.seq = cast(item.value ->> 'k' as bigint)
            and task.fence = cast(item.value ->> 'fence' as bigint) and task.run is not null
            returning task.seq as item_key, task.delivery",
};

const PROMISES: &[Promise] = &[
    Promise {
        text: "a task is held exactly while it is reviewing or in progress",
        broken: "select 'task/' || board || '-' || n as resource from task
         where (run is not null) <> (status in ('reviewing', 'in_progress'))",
    },
    Promise {
        text: "a held task has a claim time, and a free task has no claim",
        broken: "select 'task/' || board || '-' || n as resource from task
         where (run is null) <> (claimed_at is null) or (run is null and until_at is not null)",
    },
    Promise {
        text: "a task was completed at most once",
        broken: "select resource from event where kind = 'task.completed' group by resource having count(*) > 1",
    },
    Promise {
        text: "the count of a task's unfinished dependencies is right",
        // Grouped, not a subquery per task: after a large import PostgreSQL has no statistics of the tables
        // yet, and would read all tasks for each one (30 s and more for 12,000).
        broken: "select 'task/' || task.board || '-' || task.n as resource from task
         left join (
           select edge.task, count(*) as count from edge join task as other on other.seq = edge.depends_on
           where other.status <> 'completed' group by edge.task) as waits on waits.task = task.seq
         where task.waiting_on <> coalesce(waits.count, 0)",
    },
    Promise {
        text: "both ends of every dependency exist",
        broken: "select 'edge ' || task || ' after ' || depends_on as resource from edge
         where not exists (select 1 from task where seq = edge.task)
         or not exists (select 1 from task where seq = edge.depends_on)",
    },
    Promise {
        text: "a finished task has a finish time, and no other does",
        broken: "select 'task/' || board || '-' || n as resource from task
         where (finished_at is not null) <> (status in ('completed', 'failed', 'cancelled'))",
    },
    Promise {
        text: "an assigned task has an assignee, and an offered task has its agent",
        broken: "select 'task/' || board || '-' || n as resource from task
         where (status = 'pending' and assignee is null)
         or (status in ('offered', 'reviewing') and offered_to is null)
         or (status = 'unassigned' and assignee is not null)",
    },
    Promise {
        text: "every task has its text",
        broken: "select 'task/' || board || '-' || n as resource from task
         where not exists (select 1 from task_doc where task_doc.task = task.seq)",
    },
    Promise {
        text: "no number is used beyond its board's counter",
        broken: "select 'task/' || task.board || '-' || task.n as resource from task
         left join board on board.name = task.board where board.name is null or task.n >= board.next_n",
    },
    Promise {
        text: "every tag agrees with its task",
        broken: "select 'task/' || task.board || '-' || task.n as resource from task_tag
         join task on task.seq = task_tag.task
         where task_tag.ready <> task.ready or task_tag.priority <> task.priority or task_tag.board <> task.board",
    },
    Promise {
        text: "every tag of a task has its row",
        broken: "select 'task/' || board || '-' || n as resource from task
         where (select count(distinct value) from json_each(coalesce(task.tags, '[]')))
           <> (select count(*) from task_tag where task_tag.task = task.seq)",
    },
    Promise {
        text: "every row of a task has its task",
        broken: "select 'task_doc ' || task as resource from task_doc
         where not exists (select 1 from task where seq = task_doc.task)
         union all
         select 'task_tag ' || task as resource from task_tag
         where not exists (select 1 from task where seq = task_tag.task)
         union all
         select 'note ' || task as resource from note where not exists (select 1 from task where seq = note.task)",
    },
];
