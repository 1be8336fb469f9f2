//! A client for a fleet, wherever it is: in a database that this process opens, or behind a server.
//!
//! Every op is called through a [`Connection`], and the caller need not know which of the two it is. The rules are in
//! the engine (the crate [`fencepost`]), and so are the ops.
//!
//! ```
//! use fencepost::{Code, Millis, Result, claim, task};
//! use fencepost_client::Connection;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let url = dir.path().join("fence.db").display().to_string();
//! // A path, sqlite:PATH, postgres://…, or the address of a server: http://127.0.0.1:7373
//! let fleet = Connection::open(&url).await?.as_agent("codex-1");
//! fleet.call(task::Add::new("auth", "write the parser")).await?;
//!
//! // Claim the next task for a run, with a lease of one minute.
//! let claim = task::Claim { ttl_ms: Some(Millis::minutes(1)), ..task::Claim::next("auth", "session-7") };
//! let claimed = fleet.call(claim).await?;
//! let token = &claimed.claim.token; // task/auth-1@1
//!
//! // Nobody else gets it meanwhile.
//! let refused = fleet.call(task::Claim::next("auth", "session-8")).await.unwrap_err();
//! assert_eq!(refused.code(), Code::NoneReady);
//!
//! // Renew the lease while you work, and check it before an effect that cannot be undone.
//! fleet.call(claim::Renew::new(token)).await?;
//! assert!(fleet.call(claim::Guard::new(token)).await?.ok);
//!
//! // Complete it. A holder that lost its claim is refused here.
//! fleet.call(task::Done { output: Some("it parses".into()), ..task::Done::new(token) }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! - **Retries.** A call to a server is retried where repeating it is safe: it only reads, it carries a request id (the
//!   client adds one), it acts under a claim, or it is idempotent. Where the outcome stays unknown the error is
//!   [`Code::OutcomeUnknown`](fencepost::Code::OutcomeUnknown).
//! - **Dropping a call** gives back what it claims, wherever the fleet is.
//! - [`consumer`] is a mailbox as a stream: it claims, renews and gives back by itself.
//! - [`renewal`] is the rule for renewing a lease while something runs, and [`claims`] compares a run's claims with the
//!   fleet's: for programs that hold claims without a consumer.

// The layers of this crate, lowest first. A module imports only from modules above it in this list;
// `tests/it/layers.rs` reads the list and checks every import.

mod address;

mod http;

mod retry;

mod remote;

mod connection;

pub mod claims;

pub mod renewal;

pub mod consumer;

pub use connection::{Connection, is_remote};
pub use http::{Http, HttpError, Reason};

/// The examples of the guide are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
mod guide {}
