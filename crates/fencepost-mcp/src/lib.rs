//! What an agent gets over MCP: nine tools and a few resources, each translated into ops of the registry. The rules are in the
//! engine; who calls, and for which run, is decided by the [`Host`].
//!
//! [`Mcp`] is a service of `rmcp`. `fence mcp` serves it on standard input and output, and `fence serve` at `/mcp`.

// The layers of this crate, lowest first. A module imports only from modules above it in this list;
// `tests/it/layers.rs` reads the list and checks every import.

mod meta;

mod frame;

mod hints;

mod host;

mod arguments;

mod session;

mod tools;

mod resources;

mod service;

mod connection;

pub use connection::Connection;
pub use host::{Acting, Call, Host};
pub use meta::session_run;
pub use service::Mcp;
pub use tools::list as tools;
