//! The databases: one open transaction, its statements and rows, the schema, and the two stores.

pub(crate) mod in_use;
pub(crate) mod migrate;
pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod tx;
