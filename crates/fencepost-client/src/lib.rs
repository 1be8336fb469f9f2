//! A fleet, wherever it is: in a database that this process opens, or behind a server.
//!
//! Interfaces call ops through a [`Connection`] and do not know which of the two it is. A [`consumer`] is a mailbox as
//! a stream.

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

#[doc(hidden)]
pub use claims as held;
pub use connection::{Connection, is_remote};
pub use http::{Http, HttpError, Reason};
