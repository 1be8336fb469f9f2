//! Fencepost makes fleets of AI agents share work: each task, message or lock is claimed by one run at a time.
//! A claim is a lease with a fencing token, stored on the item's own row, and every write under the claim checks it.
//! The fleet is one database: a SQLite file, or PostgreSQL for many machines.
//!
//! # The promise
//!
//! **At-least-once execution, at most one accepted completion.** If a run dies, its lease ends and another run gets the
//! item. A run that lost its claim is refused when it renews, checkpoints, completes, fails or releases the item.
//!
//! Effects outside of the fleet (a push, a deploy, an e-mail) are not exactly-once: a crash between the effect and the
//! completion repeats the effect. [`claim::Guard`] stops a run that lost its claim before it starts an effect.
//!
//! # Example
//!
//! ```
//! use fencepost::{Clock, Code, Fleet, ManualClock, Options, Result, claim, task};
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let url = dir.path().join("fence.db").display().to_string();
//! // A test moves its own clock; without this, `Fleet::open(&url)` is enough.
//! let clock = ManualClock::at("2026-01-01T09:00:00Z".parse().unwrap());
//! let mut options = Options::default();
//! options.clock = Clock::Manual(clock.clone());
//! let fleet = Fleet::open_with(&url, options).await?; // a path, sqlite:PATH or postgres://…
//! fleet.call(task::Add::new("auth", "write the parser")).await?;
//!
//! // One run claims the task, and records how far it has come.
//! let first = fleet.call(task::Claim::next("auth", "run-1")).await?;
//! assert_eq!(first.claim.token, "task/auth-1@1");
//! let save = task::SaveCheckpoint { ordinal: 1, phase: "the lexer works".into(), ..Default::default() };
//! fleet.call(task::SaveCheckpoint { token: first.claim.token.clone(), ..save }).await?;
//!
//! // It dies. After its lease (30 minutes) another run gets the task, with the checkpoint and a higher fence.
//! clock.advance(Duration::from_secs(30 * 60));
//! let second = fleet.call(task::Claim::next("auth", "run-2")).await?;
//! assert_eq!(second.claim.token, "task/auth-1@2");
//! assert_eq!(second.task.checkpoint.unwrap().phase, "the lexer works");
//!
//! // The first run was only frozen, and wakes up. Its completion is refused.
//! let refused = fleet.call(task::Done::new(&first.claim.token)).await.unwrap_err();
//! assert_eq!(refused.code(), Code::LeaseExpired);
//! assert!(refused.ends_claim());
//!
//! // The second run checks its claim before an effect that cannot be undone, and completes the task.
//! assert!(fleet.call(claim::Guard::new(&second.claim.token)).await?.ok);
//! fleet.call(task::Done::new(&second.claim.token)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Fleet::transaction`] runs several verbs and your own SQL in one transaction, so that your rows and the completion
//! commit together.
//!
//! # Modules
//!
//! Each noun is a module, and each verb is a struct in it that implements [`Op`]. [`Fleet::call`] runs a verb.
//!
//! - [`task`], [`board`]: work with dependencies, in groups.
//! - [`loops`]: a chain of steps for each story of a plan.
//! - [`mail`]: durable queues of messages.
//! - [`lock`]: named locks.
//! - [`once`]: effects that must happen once, with their kept results.
//! - [`agent`], [`inbox`], [`channel`], [`route`]: agents, their inboxes, their conversation, and the rules that
//!   deliver outside events to them.
//! - [`storm`]: wake-ups for unread posts, and the limits on what one event may set off.
//! - [`spend`]: limits on the runs, tokens and dollars that an agent, a board or the fleet may use.
//! - [`claim`], [`run`]: verbs for every claim, and the runs that hold claims.
//! - [`event`]: the log of every change.
//! - [`key`], [`admin`]: keys for remote callers; checking, pruning, exporting and restoring a fleet.
//! - [`op`]: the registry of all verbs, from which the server and the command line are made.
//! - [`address`], [`files`], [`sync`], [`tls`], [`hidden`]: helpers for the other crates of this project.

pub mod address;
mod backoff;
mod caller;
mod clock;
mod db;
mod engine;
mod error;
pub mod files;
pub mod hidden;
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
pub use ops::{
    admin, agent, board, channel, claim, event, inbox, key, lock, loops, mail, once, route, run, spend,
    storm, task,
};

/// The trait of every verb, and the registry of all verbs that every interface is made from.
pub mod op {
    pub use crate::{
        caller::Access,
        db::AnyReply,
        engine::op::*,
        ops::registry::{find, registry, visit_all},
    };
}
