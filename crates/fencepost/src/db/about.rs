//! What a database says of itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a database says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Database {
    /// `SQLite` or `PostgreSQL`.
    pub kind: String,
    pub version: String,
    pub schema_version: i64,
    /// What decides whether a commit that was acknowledged can be lost.
    pub durability: Vec<Setting>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    pub name: String,
    pub value: String,
    /// With this value, what was acknowledged survives a power cut.
    pub durable: bool,
}

impl Setting {
    pub(crate) fn new(name: &str, value: String, durable: &[&str]) -> Self {
        Self { name: name.into(), durable: durable.contains(&value.as_str()), value }
    }
}
