use super::{PRESENCE, list, not_found};
use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::Tx,
    engine::op::{OnRetry, Op, erased, refuses},
    error::{Code, Error, Result},
    lease::{Under, expiry::ITEMS},
    limits::{TEXT_MAX, check},
    ops::task,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Return tasks that are offered or assigned to an offline agent, and not started, to the pool at once.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recall {
    pub agent: String,
    /// Also if the agent is online.
    #[serde(default)]
    pub force: bool,
    /// Reason, for the log.
    #[serde(default)]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Recalled {
    /// The tasks that are back in the pool.
    pub tasks: Vec<String>,
    /// There are more: repeat the call.
    pub more: bool,
}

impl Op for Recall {
    const NAME: &'static str = "agent/recall";
    const ACCESS: Access = Access::Agent;
    // Never: a repeat would also recall tasks that were assigned meanwhile.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"agent":"codex-1"}"#;
    refuses![NotReady];
    type Reply = Recalled;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Recalled> {
        check::plain_name("agent", &self.agent)?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        if self.force {
            tx.caller.acting_as("agent", Some(&self.agent))?;
        }
        let agent = list::of(tx, &self.agent).await?;
        if agent.as_ref().is_some_and(|agent| agent.online) && !self.force {
            return Err(Error::new(Code::NotReady, format!("agent `{}` is online", self.agent))
                .hint(format!("fence agent recall {} --force recalls its tasks anyway", self.agent)));
        }
        let tasks = give_back(tx, &self.agent, self.reason.as_deref()).await?;
        if agent.is_none() && tasks.is_empty() {
            return Err(not_found(&self.agent));
        }
        let more = tasks.len() as i64 >= ITEMS;
        Ok(Recalled { tasks, more })
    }
}

/// Returns one batch of the tasks that wait for this agent to the pool.
pub(super) async fn give_back(tx: &mut Tx<'_>, agent: &str, reason: Option<&str>) -> Result<Vec<String>> {
    let rows = tx
        .query(
            task::columns!(
                "where (task.status = 'offered' and task.parked is null and task.offered_to = ?1)
                 or (task.ready = 2 and task.assignee = ?1)
                 order by task.seq limit ?2 /*pg for update of task skip locked*/"
            ),
            params![agent, ITEMS],
        )
        .await?;
    let mut changes = Vec::with_capacity(rows.len());
    let mut events = Vec::with_capacity(rows.len());
    for row in rows {
        let mut task = task::Record::read(row)?;
        let was = task.was();
        events.push(task::lapse::recall(&mut task, agent, tx.now).because(reason));
        changes.push((was, task));
    }
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    task::save_set(tx, &changes, Under::NoClaim).await?;
    tx.one(crate::log::Event::insert_many(tx, events)?).await?;
    Ok(changes.into_iter().map(|(_, after)| after.id.to_string()).collect())
}

/// Returns one batch of tasks of one agent that was offline for too long. If the agent has a live run, its deadline
/// moves past that run's lease instead.
pub(crate) async fn strand(tx: &mut Tx<'_>) -> Result<u64> {
    let rows = tx
        .query(
            "select name, strand_ms, left_at, (select max(expires_at) from run where run.agent = agent.name
               and run.ended_at is null and run.expires_at > ?1) as alive_until
             from agent where strands_at <= ?1 order by strands_at limit 1 /*pg for update skip locked*/",
            params![tx.now],
        )
        .await?;
    let Some(row) = rows.first() else { return Ok(0) };
    let (name, strand): (String, Millis) = (row.get("name")?, row.get("strand_ms")?);
    let has_left = row.get::<Option<Time>>("left_at")?.is_some();
    let (next, given): (Option<Time>, usize) = match row.get::<Option<Time>>("alive_until")? {
        Some(until) => (Some(until.plus(strand)), 0),
        None => {
            let given = give_back(tx, &name, None).await?.len();
            // A task that is assigned to it later, while it stays offline, waits as long.
            let next = tx.now.plus(strand.max(PRESENCE));
            let next = if given as i64 >= ITEMS { tx.now } else { next };
            ((given > 0 || !has_left).then_some(next), given)
        }
    };
    tx.execute("update agent set strands_at = ?2 where name = ?1", params![&name, next]).await?;
    Ok(1 + given as u64)
}
