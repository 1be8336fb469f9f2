//! Agents: named participants. Many processes may act for one agent. A poll returns an agent's next trigger: work that
//! is already claimed.

use crate::{
    clock::{Millis, Time},
    db::{Row, Stmt, Tx},
    engine::op::verbs,
    error::{Code, Error, Result},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

verbs![join::Join, list::List, leave::Leave, recall::Recall, pause::Pause, resume::Resume, poll::Poll];
pub(crate) mod given;
mod pool;
pub(crate) mod trigger;
pub use pause::PauseState;
pub use trigger::{Trigger, Type};

/// An agent counts as offline after this long without a poll or a live run.
pub const PRESENCE: Millis = Millis::minutes(5);
/// Default delay after that until tasks offered or assigned to the agent go back to the pool.
pub const STRAND: Millis = Millis::minutes(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Gets notices of tasks that others finished.
    Lead,
    /// Takes tasks from the pool.
    #[default]
    Worker,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Lead => "lead",
            Role::Worker => "worker",
        }
    }
}

/// An agent's row.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub name: String,
    pub role: Role,
    pub capabilities: Vec<String>,
    pub max_concurrent: Option<i64>,
    pub strand: Millis,
    pub joined_at: Time,
    pub heard_until: Time,
    /// The same for polls that accept wake-ups.
    pub wakes_until: Time,
    pub left_at: Option<Time>,
    /// Its last trigger jumped the usual order because it had waited too long.
    pub jumped: bool,
    /// Its last pause, which may be over: see [`Self::paused`].
    pub pause: Option<PauseState>,
}

macro_rules! agents {
    ($rest:literal) => {
        concat!(
            "select name, role, capabilities, max_concurrent, strand_ms, joined_at, heard_until, wakes_until, left_at, jumped,
              paused_at, paused_until, paused_reason from agent ",
            $rest
        )
    };
}
pub(crate) use agents;

impl Record {
    pub fn read(row: &Row) -> Result<Self> {
        let role: String = row.get("role")?;
        let capabilities: Option<String> = row.get("capabilities")?;
        let capabilities = capabilities.map_or(Ok(Vec::new()), |list| serde_json::from_str(&list));
        Ok(Self {
            name: row.get("name")?,
            role: if role == "lead" { Role::Lead } else { Role::Worker },
            capabilities: capabilities.map_err(Error::internal)?,
            max_concurrent: row.get("max_concurrent")?,
            strand: row.get("strand_ms")?,
            joined_at: row.get("joined_at")?,
            heard_until: row.get("heard_until")?,
            wakes_until: row.get("wakes_until")?,
            left_at: row.get("left_at")?,
            jumped: row.get("jumped")?,
            pause: match row.get("paused_at")? {
                Some(since) => Some(PauseState {
                    since,
                    until: row.get("paused_until")?,
                    reason: row.get("paused_reason")?,
                }),
                None => None,
            },
        })
    }
    /// The pause in force.
    pub fn paused(&self, now: Time) -> Option<&PauseState> {
        self.pause.as_ref().filter(|pause| !pause.is_over(now))
    }
    /// The time at which a poll must extend the agent's presence: after a quarter of [`PRESENCE`].
    pub fn presence_due_at(&self, poll: Heard) -> Time {
        let until = match poll {
            Heard::Polling => self.heard_until,
            Heard::TakingWakeups => self.heard_until.min(self.wakes_until),
        };
        Time(until.0 - PRESENCE.0 * 3 / 4)
    }
}

/// What a poll tells about its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    Polling,
    /// It also accepts wake-ups.
    TakingWakeups,
}

pub(crate) fn by_name(name: &str) -> Stmt {
    Stmt::read(agents!("where name = ?1"), params![name])
}

pub(crate) fn not_found(name: &str) -> Error {
    Error::new(Code::NotFound, format!("there is no agent `{name}`"))
        .hint(format!("fence agent join {name} adds it; fence agent list lists the agents"))
}

/// Extends the agent's presence, and with it the time at which its tasks go back to the pool.
fn extend_presence(agent: &Record, poll: Heard, now: Time) -> Stmt {
    let until = now.plus(PRESENCE);
    let wakes_until = if poll == Heard::TakingWakeups { until } else { agent.wakes_until };
    Stmt::write(
        "update agent set heard_until = ?2, strands_at = ?3,
           wakes_until = case when wakes_until < ?4 then cast(?4 as bigint) else wakes_until end
         where name = ?1 and (heard_until < ?2 or wakes_until < ?4)",
        params![&agent.name, until, until.plus(agent.strand), wakes_until],
    )
}

/// Whether an agent of this name has joined and not left.
pub(crate) async fn is_known(tx: &mut Tx<'_>, name: &str) -> Result<bool> {
    Ok(!tx.one(known(name)).await?.rows.is_empty())
}

/// Reads one row if an agent of this name has joined and not left.
pub(crate) fn known(name: &str) -> Stmt {
    Stmt::read("select 1 as known from agent where name = ?1 and left_at is null", params![name])
}
