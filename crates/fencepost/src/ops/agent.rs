//! Agents: named participants, for each of which many processes may act. A poll gives one of them its next trigger:
//! work that is already claimed.

use crate::{
    clock::{Millis, Time},
    db::{Row, Stmt, Tx},
    engine::op::verbs,
    error::{Code, Error, Result},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

verbs![join::Join, list::List, leave::Leave, recall::Recall, poll::Poll];
pub(crate) mod given;
mod pool;
pub(crate) mod trigger;
pub use trigger::{Trigger, Type};

/// How long an agent may go unheard before it counts as offline. Its polls are heard, and its runs.
pub const PRESENCE: Millis = Millis::minutes(5);
/// How long after that what is offered or assigned to it goes back to the pool.
pub const STRAND: Millis = Millis::minutes(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Is told of what others finished.
    Lead,
    /// Takes what is in the pool.
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
    pub left_at: Option<Time>,
    /// What it was given last went before its turn.
    pub jumped: bool,
}

macro_rules! agents {
    ($rest:literal) => {
        concat!(
            "select name, role, capabilities, max_concurrent, strand_ms, joined_at, heard_until, left_at, jumped from agent ",
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
            left_at: row.get("left_at")?,
            jumped: row.get("jumped")?,
        })
    }
    /// When it is time to write that it is heard: a quarter of its promise is used.
    pub fn to_be_heard_at(&self) -> Time {
        Time(self.heard_until.0 - PRESENCE.0 * 3 / 4)
    }
}

pub(crate) fn by_name(name: &str) -> Stmt {
    Stmt::read(agents!("where name = ?1"), params![name])
}

pub(crate) fn not_found(name: &str) -> Error {
    Error::new(Code::NotFound, format!("there is no agent `{name}`"))
        .hint(format!("fence agent join {name} makes it known; fence agent list shows those there are"))
}

/// The agent is heard: it is here for a while, and nothing of its is stranded until long after.
pub(crate) async fn hear(tx: &mut Tx<'_>, agent: &mut Record) -> Result<()> {
    let until = tx.now.plus(PRESENCE);
    agent.heard_until = agent.heard_until.max(until);
    tx.execute(
        "update agent set heard_until = ?2, strands_at = ?3 where name = ?1 and heard_until < ?2",
        params![&agent.name, until, until.plus(agent.strand)],
    )
    .await?;
    Ok(())
}

/// Has an agent of this name joined, and not left?
pub(crate) async fn is_known(tx: &mut Tx<'_>, name: &str) -> Result<bool> {
    Ok(!tx.one(known(name)).await?.rows.is_empty())
}

/// A row if so.
pub(crate) fn known(name: &str) -> Stmt {
    Stmt::read("select 1 as known from agent where name = ?1 and left_at is null", params![name])
}
