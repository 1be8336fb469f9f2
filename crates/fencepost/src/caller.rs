//! The caller: an agent, a key and its role. [`crate::log::access`] has the rules about them.

use crate::clock::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The caller of an op. Every event records its agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    pub agent: Option<String>,
    /// The run that the caller says it acts in. It is believed only if it is the caller's own: see [`crate::log::cause`].
    pub(crate) run: Option<String>,
    /// The key that it showed. Without one it may call every op.
    pub(crate) key: Option<Arc<Key>>,
    /// It called remotely without a key, while the fleet had none.
    pub(crate) is_guest: bool,
}

/// The role that an op requires, and that a key has. Each role may call everything that the role before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    Reader,
    Agent,
    Admin,
}

impl Access {
    pub fn as_str(self) -> &'static str {
        match self {
            Access::Reader => "reader",
            Access::Agent => "agent",
            Access::Admin => "admin",
        }
    }
    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Access::Reader, Access::Agent, Access::Admin].into_iter().find(|access| access.as_str() == text)
    }
}

/// A key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Key {
    /// A new key may get the name of a revoked one. No other key ever gets this number.
    #[serde(skip)]
    pub(crate) id: i64,
    pub name: String,
    /// It may call ops that require this role or a lower one.
    pub role: Access,
    /// Its callers act as this agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    pub created_at: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Time>,
}
