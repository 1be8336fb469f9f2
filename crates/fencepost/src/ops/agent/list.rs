use super::{PauseState, Record, Role, agents, by_name};
use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::{Batch, Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    lease::overdue::Overdue,
    ops::{run, task},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// List the agents with their live runs, and the tasks that wait for offline agents.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Also agents that left.
    #[serde(default)]
    pub all: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Agents {
    pub agents: Vec<Agent>,
    /// Names with offered or assigned tasks but without an agent: misspelt, not joined yet, or left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<Unknown>,
}

/// Tasks that wait for a name without an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Unknown {
    pub agent: String,
    pub tasks: Vec<String>,
}

/// A named participant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Agent {
    pub name: String,
    pub role: Role,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<i64>,
    pub strand_ms: Millis,
    /// It polled recently, or has a live run.
    pub online: bool,
    /// Its polls get no trigger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<PauseState>,
    pub joined_at: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_at: Option<Time>,
    /// Its live runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<Doing>,
    /// Number of tasks that are offered or assigned to it and not started.
    pub waiting: i64,
    /// Those tasks, if the agent is offline: they go back to the pool after `strand_ms`, or by `agent/recall`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stranded: Vec<String>,
}

/// A live run and its claims.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Doing {
    pub run: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    pub since: Time,
    /// Tokens of the claims that it holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<String>,
}

impl Op for List {
    const NAME: &'static str = "agent/list";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Agents;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Agents> {
        let mut list = all(tx).await?;
        list.agents.retain(|agent| self.all || agent.left_at.is_none());
        Ok(list)
    }
}

/// Tasks that are offered or assigned and can be started, without the overdue ones (`?2`).
const WAITING: &str = "
    select offered_to as agent, board, n from task
    where status = 'offered' and parked is null and offered_to is not null
    and seq not in (select cast(value ->> 'k' as bigint) from json_each(?2))
    union all
    select assignee, board, n from task
    where ready = 2 and assignee is not null
    and seq not in (select cast(value ->> 'k' as bigint) from json_each(?2))
    union all
    select assignee, board, n from task
    where delayed_until <= ?1 and status = 'pending' and waiting_on = 0 and parked is null and assignee is not null
    and seq not in (select cast(value ->> 'k' as bigint) from json_each(?2))
    limit 10000";

/// As [`WAITING`], for one agent.
const WAITING_FOR: &str = "
    select offered_to as agent, board, n from task
    where status = 'offered' and parked is null and offered_to = ?3
    and seq not in (select cast(value ->> 'k' as bigint) from json_each(?2))
    union all
    select assignee, board, n from task
    where ready = 2 and assignee = ?3
    and seq not in (select cast(value ->> 'k' as bigint) from json_each(?2))
    union all
    select assignee, board, n from task
    where delayed_until <= ?1 and status = 'pending' and waiting_on = 0 and parked is null and assignee = ?3
    and seq not in (select cast(value ->> 'k' as bigint) from json_each(?2))
    limit 10000";

pub(super) async fn all(tx: &mut Tx<'_>) -> Result<Agents> {
    let overdue = task::overdue(tx, None).await?;
    let reads = Reads {
        agents: Stmt::read(agents!("order by name limit 10000"), params![]),
        runs: Stmt::read(
            "select key, agent, name, trigger_type, host, opened_at from run
             where ended_at is null and expires_at > ?1 and agent is not null limit 10000",
            params![tx.now],
        ),
        waiting: Stmt::read(WAITING, params![tx.now, overdue.keys()]),
    };
    read(tx, reads, &overdue).await
}

/// The agent of this name.
pub(super) async fn of(tx: &mut Tx<'_>, name: &str) -> Result<Option<Agent>> {
    let overdue = task::overdue(tx, None).await?;
    let reads = Reads {
        agents: by_name(name),
        runs: Stmt::read(
            "select key, agent, name, trigger_type, host, opened_at from run
             where ended_at is null and expires_at > ?1 and agent = ?2 limit 10000",
            params![tx.now, name],
        ),
        waiting: Stmt::read(WAITING_FOR, params![tx.now, overdue.keys(), name]),
    };
    Ok(read(tx, reads, &overdue).await?.agents.pop())
}

/// Statements that read agents, their live runs, and the tasks that wait for them.
struct Reads {
    agents: Stmt,
    runs: Stmt,
    waiting: Stmt,
}

async fn read(tx: &mut Tx<'_>, reads: Reads, overdue: &Overdue<task::Record>) -> Result<Agents> {
    let mut batch = Batch::new();
    let agents = batch.add(reads.agents);
    let runs = batch.add(reads.runs);
    let waiting = batch.add(reads.waiting);
    let mut answers = tx.send(batch).await?;
    let rows = answers.take(agents).rows;
    let mut agents = Vec::with_capacity(rows.len());
    for row in &rows {
        let agent = Record::read(row)?;
        agents.push(Agent {
            online: agent.left_at.is_none() && agent.heard_until > tx.now,
            paused: agent.paused(tx.now).cloned(),
            name: agent.name,
            role: agent.role,
            capabilities: agent.capabilities,
            max_concurrent: agent.max_concurrent,
            strand_ms: agent.strand,
            joined_at: agent.joined_at,
            left_at: agent.left_at,
            runs: Vec::new(),
            waiting: 0,
            stranded: Vec::new(),
        });
    }
    let at: std::collections::HashMap<String, usize> =
        agents.iter().enumerate().map(|(i, agent)| (agent.name.clone(), i)).collect();
    let runs = answers.take(runs).rows;
    let keys = runs.iter().map(|row| row.get("key")).collect::<Result<Vec<i64>>>()?;
    let mut held = run::list::claims(tx, &keys).await?;
    for row in &runs {
        if let Some(&i) = at.get(&row.get::<String>("agent")?) {
            agents[i].online = agents[i].left_at.is_none();
            agents[i].runs.push(Doing {
                run: row.get("name")?,
                trigger: row.get("trigger_type")?,
                host: row.get("host")?,
                since: row.get("opened_at")?,
                claims: held.remove(&row.get("key")?).unwrap_or_default(),
            });
        }
    }
    agents.iter_mut().for_each(|agent| agent.runs.sort_by(|a, b| (a.since, &a.run).cmp(&(b.since, &b.run))));
    let mut unknown = BTreeMap::<String, Vec<String>>::new();
    let waiting = answers.take(waiting).rows;
    let waiting = waiting.iter().map(|row| Ok((row.get("board")?, row.get("n")?, row.get("agent")?)));
    let mut waiting = waiting.collect::<Result<Vec<(String, i64, String)>>>()?;
    waiting.extend(
        overdue
            .iter()
            .filter_map(|task| Some((task.id.board.clone(), task.id.n, task.waits_for()?.to_owned()))),
    );
    waiting.sort_unstable();
    for (board, n, agent) in waiting {
        let task = format!("{board}-{n}");
        let there = at.get(&agent).map(|&i| &mut agents[i]);
        if there.as_ref().is_none_or(|agent| agent.left_at.is_some()) {
            unknown.entry(agent).or_default().push(task.clone());
        }
        if let Some(agent) = there {
            agent.waiting += 1;
            agent.stranded.extend((!agent.online).then_some(task));
        }
    }
    let unknown = unknown.into_iter().map(|(agent, tasks)| Unknown { agent, tasks }).collect();
    Ok(Agents { agents, unknown })
}
