//! The description of a database: its version and its durability settings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A database's version and its durability settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Database {
    /// `SQLite` or `PostgreSQL`.
    pub kind: String,
    pub version: String,
    pub schema_version: i64,
    /// The settings that decide whether an acknowledged commit can be lost.
    pub durability: Vec<Setting>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    pub name: String,
    pub value: String,
    /// With this value, acknowledged commits survive a power cut.
    pub durable: bool,
}

impl Setting {
    pub(crate) fn new(name: &str, value: String, durable: &[&str]) -> Self {
        Self { name: name.into(), durable: durable.contains(&value.as_str()), value }
    }
}
