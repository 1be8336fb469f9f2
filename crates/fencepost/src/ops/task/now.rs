//! Tasks as expiry would write them now.

use super::{Record, columns, lapse, state, unheld};
use crate::{
    clock::Time,
    db::{Batch, Row, Stmt, Tx, set},
    error::Result,
    lease::overdue::Overdue,
    params,
};
use std::collections::HashSet;

/// The rules of expiry, and the data they need besides a task's row.
#[derive(Debug)]
pub(crate) struct Now {
    at: Time,
    /// Agents that have been silent for too long.
    silent: HashSet<String>,
}

impl Now {
    /// The rules that need only a task's row.
    pub fn at(at: Time) -> Self {
        Self { at, silent: HashSet::new() }
    }

    pub async fn read(tx: &mut Tx<'_>) -> Result<Self> {
        let mut now = Self::at(tx.now);
        if tx.opening.due.is_due(tx.now) {
            let answer = tx.one(silent(tx.now)).await?;
            now.silent = answer.rows.iter().map(|row| row.get("name")).collect::<Result<_>>()?;
        }
        Ok(now)
    }

    /// In the order of a batch of expiry (`lease/expiry.rs`). Applying it twice changes nothing more.
    pub fn of(&self, mut task: Record) -> Record {
        if task.is_lost(self.at) {
            lapse::lapse(&mut task, self.at);
            task.overdue = true;
        }
        task.delayed_until = task.delayed_until.filter(|until| *until > self.at);
        if let Some(agent) = task.waits_for().filter(|agent| self.silent.contains(*agent)).map(str::to_owned)
        {
            lapse::recall(&mut task, &agent, self.at);
        }
        task
    }
}

/// The agents that `agent::recall::strand` would find.
fn silent(now: Time) -> Stmt {
    Stmt::read(
        "select name from agent where strands_at <= ?1 and not exists (
           select 1 from run where run.agent = agent.name and run.ended_at is null and run.expires_at > ?1)",
        params![now],
    )
}

/// Tasks of runs whose lease expired. The runs are found first.
const OF_EXPIRED_RUNS: &str = concat!(
    state!(),
    "run.key as run_key, run.name as run_name, run.agent as run_agent,
       run.expires_at as run_expires_at, run.ended_at as run_ended_at
     from run cross join task
     where run.ended_at is null and run.expires_at <= ?2 and task.run = run.key
     and (cast(?1 as text) is null or task.board = ?1)"
);

/// Tasks of runs that ended.
const OF_ENDED_RUNS: &str = concat!(
    state!(),
    "run.key as run_key, run.name as run_name, run.agent as run_agent,
       run.expires_at as run_expires_at, run.ended_at as run_ended_at
     from run cross join task
     where run.ended_at is not null and run.settled = 0 and task.run = run.key
     and (cast(?1 as text) is null or task.board = ?1)"
);

/// Tasks offered to silent agents, which are looked up one by one.
const OFFERED_TO: &str = unheld!(
    "from json_each(?2) as silent cross join task
     where task.offered_to = silent.value ->> 'name' and task.status = 'offered' and task.parked is null
     and (cast(?1 as text) is null or task.board = ?1)"
);

/// Ready tasks assigned to silent agents.
const ASSIGNED_TO: &str = unheld!(
    "from json_each(?2) as silent cross join task
     where task.assignee = silent.value ->> 'name' and task.ready = 2
     and (cast(?1 as text) is null or task.board = ?1)"
);

/// Tasks assigned to silent agents whose delay is over.
const WOKEN_FOR: &str = unheld!(
    "from json_each(?2) as silent cross join task
     where task.assignee = silent.value ->> 'name' and task.status = 'pending' and task.delayed_until <= ?3
     and (cast(?1 as text) is null or task.board = ?1)"
);

/// The tasks, of one board or of all, whose claim is lost, or whose agent was silent for too long.
pub(crate) async fn overdue(tx: &mut Tx<'_>, board: Option<&str>) -> Result<Overdue<Record>> {
    let now = tx.now;
    if !tx.opening.due.is_due(now) {
        return Ok(Overdue::default());
    }
    let mut batch = Batch::new();
    let silent = batch.add(silent(now));
    batch.extend([
        Stmt::read(OF_EXPIRED_RUNS, params![board, now]),
        Stmt::read(OF_ENDED_RUNS, params![board]),
        Stmt::read(
            columns!("where (cast(?1 as text) is null or task.board = ?1) and task.until_at <= ?2"),
            params![board, now],
        ),
    ]);
    let mut answers = tx.send(batch).await?;
    let silent = answers.take(silent).rows;
    let silent = silent.iter().map(|row| row.get("name")).collect::<Result<HashSet<_>>>()?;
    let mut found: Vec<Row> = answers.into_rows().collect();
    if !silent.is_empty() {
        let names = set(silent.iter().map(|name| serde_json::json!({ "name": name })))?;
        let stranded = Batch::from([
            Stmt::read(OFFERED_TO, params![board, names.clone()]),
            Stmt::read(ASSIGNED_TO, params![board, names.clone()]),
            Stmt::read(WOKEN_FOR, params![board, names, now]),
        ]);
        found.extend(tx.send(stranded).await?.into_rows());
    }
    let rule = Now { at: now, silent };
    found.into_iter().map(|row| Record::read(row).map(|task| rule.of(task))).collect()
}
