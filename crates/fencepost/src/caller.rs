//! The caller: an agent, a key and its role. The rules about them are in [`crate::log::access`].

use crate::clock::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Who is calling. Recorded with every event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    pub agent: Option<String>,
    /// What it may do, if it had to show a key.
    pub(crate) key: Option<Arc<Key>>,
    /// It came from afar without a key, because the fleet had none.
    pub(crate) is_guest: bool,
}

/// Who may call an op.
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
    /// A name can be used again; this is one key's for ever.
    #[serde(skip)]
    pub(crate) id: i64,
    pub name: String,
    /// The most that it may call.
    pub role: Access,
    /// The agent that it acts as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    pub created_at: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Time>,
}
