//! A fleet on the network: every op of the registry at `POST /v1/<noun>/<verb>`, and ops that only read also at `GET`.
//! Beside them are the webhooks of Slack and GitHub, the log as server-sent events, metrics and documentation.
//! Handlers decode, call and encode; the rules are in the engine.
//!
//! ```
//! use fencepost::{Fleet, Result};
//! use fencepost_server::{App, Server, Settings};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let url = dir.path().join("fence.db").display().to_string();
//! let fleet = Fleet::open(&url).await?;
//! let settings = Settings::new(([127, 0, 0, 1], 0).into()); // port 0: any free one
//! let server = Server::bind(App::new(fleet, settings)).await?;
//! println!("serving {}", server.url());
//! # let stop = async {};
//! server.run(stop).await?; // until the future `stop` is ready
//! # Ok(())
//! # }
//! ```
//!
//! [`Server`] accepts connections and runs the background jobs. [`router`] and [`run_jobs`] are the same parts for a
//! program with a listener of its own.

// The layers of this crate, lowest first. A module imports only from modules above it in this list;
// `tests/it/layers.rs` reads the list and checks every import.

mod settings;

mod limits;

mod http;

mod access;

mod telemetry;

mod app;

mod ops;

mod events;

mod webhooks;

mod mcp;

mod docs;

mod jobs;

mod environment;

mod router;

mod server;

pub use app::App;
pub use jobs::run as run_jobs;
pub use router::router;
pub use server::Server;
pub use settings::{Secret, Settings, TlsFiles};
pub use telemetry::metrics::Usage;
