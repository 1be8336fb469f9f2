//! Exactly-once work for fleets of AI agents.
//!
//! A claim is held under a lease and a fencing token, taken in the same transaction as the state it stands
//! for; every write checks it. In words: at-least-once execution, at most one accepted completion. An effect
//! outside the fleet can happen twice: a crash between the effect and the completion repeats the effect. A guard
//! stops a holder that lost its claim.
//!
//! [`Fleet::open`] opens a database, [`Fleet::call`] runs one verb, [`Fleet::transaction`] several verbs and
//! your own SQL. Each noun is a module, each verb a struct in it: [`task::Claim`], [`lock::Claim`].

mod backoff;
mod caller;
mod clock;
mod db;
mod engine;
mod error;
mod ids;
mod json;
mod lease;
mod limits;
mod log;
mod ops;
pub mod sync;
pub mod tls;
mod topic;

pub use backoff::Backoff;
pub use caller::{Access, Caller};
pub use clock::{Clock, ManualClock, Millis, Time};
pub use db::{
    Answer, Answers, Batch, BoxFuture, FromValue, Row, Slot, Stmt, Tx, Value,
    options::{Durability, Fallback, Options},
    stats::Counts,
};
pub use engine::{fleet::Fleet, op::Op, prelude::Prelude, run_to_end::RunToEnd};
pub use error::{Code, Error, Result};
pub use ids::{Resource, TaskId, Token};
pub use json::Json;
pub use limits::{OUTPUT_MAX, WAIT_MAX};
pub use ops::{admin, agent, board, channel, claim, event, inbox, key, lock, mail, route, run, task};

/// One verb, one struct: the trait, and the registry that everything facing a user is made from.
pub mod op {
    pub use crate::{
        caller::Access,
        db::AnyReply,
        engine::op::*,
        ops::registry::{find, registry, visit_all},
    };
}
