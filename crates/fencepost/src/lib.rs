//! Exactly-once work for fleets of AI agents.
//!
//! A claim is held under a lease and a fencing token, taken in the same transaction as the state it stands
//! for; every write checks it. In words: at-least-once execution, at most one accepted completion. An external
//! side effect is exactly-once only where the thing it changes checks the fence, or the effect runs under a
//! guard.
//!
//! [`Fleet::open`] opens a database, [`Fleet::call`] runs one verb, [`Fleet::transaction`] several verbs and
//! your own SQL. Each noun is a module, each verb a struct in it: [`task::Claim`], [`lock::Claim`].

mod clock;
mod db;
mod engine;
mod error;
mod json;
mod lease;
mod names;
mod ops;
pub mod tls;

pub use clock::{Clock, ManualClock, Millis, Time};
pub use db::tx::{Answer, BoxFuture, Caller, FromValue, Row, Stmt, Tx, Value};
pub use engine::{
    fleet::{Counts, Durability, Fleet, Options},
    op::{self, Access, Op},
    prelude::Before,
    unbroken::Unbroken,
};
pub use error::{Code, Error, Result};
pub use json::Json;
pub use names::{OUTPUT_MAX, Resource, TaskId, Token, WAIT_MAX};
pub use ops::{admin, agent, board, channel, claim, event, inbox, key, lock, mail, route, run, task};
