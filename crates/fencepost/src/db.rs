//! The databases: one open transaction, its statements and rows, the schema, and the two stores.
//!
//! A store knows transactions and nothing of claims. It runs a [`Script`] that the engine provides.

pub(crate) mod about;
pub(crate) mod dialect;
pub(crate) mod in_use;
pub(crate) mod migrate;
mod notes;
mod opening;
pub(crate) mod options;
pub(crate) mod postgres;
mod row;
pub(crate) mod sqlite;
mod statement;
pub(crate) mod stats;
mod store;
mod tx;

pub(crate) use notes::{Delivered, News, Notes, Subscription};
pub(crate) use opening::{Due, Opening, Repeat, RunRow};
pub use row::{FromValue, Row, Value};
pub use statement::{Answer, Answers, Batch, Slot, Stmt};
pub(crate) use statement::{by_keys, key_set, numbered, set};
pub use store::AnyReply;
pub(crate) use store::{Outcome, Pace, PreludeWork, Script, Store};
pub use tx::{BoxFuture, Tx};
pub(crate) use tx::{Db, Scope};
