//! Exactly-once work for fleets of AI agents.
//!
//! A claim is held under a lease and a fencing token, taken in the same transaction as the state it stands
//! for; every write checks it. In words: at-least-once execution, at most one accepted completion. An effect
//! outside the fleet can happen twice: a crash between the effect and the completion repeats the effect. A guard
//! stops a holder that lost its claim.
//!
//! [`Fleet::open`] opens a database, [`Fleet::call`] runs one verb, [`Fleet::transaction`] several verbs and
//! your own SQL. Each noun is a module, each verb a struct in it: [`task::Claim`], [`lock::Claim`].

pub mod admin;
pub mod agent;
mod before;
pub mod board;
pub mod channel;
pub mod claim;
mod clock;
mod error;
pub mod event;
mod fleet;
mod in_use;
pub mod inbox;
mod json;
pub mod key;
pub mod lock;
pub mod mail;
mod migrate;
mod names;
pub mod op;
mod overdue;
mod postgres;
pub mod route;
pub mod run;
mod sqlite;
pub mod task;
pub mod tls;
mod tx;
mod unbroken;
mod wait;

pub use before::Before;
pub use clock::{Clock, ManualClock, Millis, Time};
pub use error::{Code, Error, Result};
pub use fleet::{Counts, Durability, Fleet, Options};
pub use json::Json;
pub use names::{OUTPUT_MAX, Resource, TaskId, Token, WAIT_MAX};
pub use op::{Access, Op};
pub use tx::{Answer, BoxFuture, Caller, FromValue, Row, Stmt, Tx, Value};
pub use unbroken::Unbroken;
