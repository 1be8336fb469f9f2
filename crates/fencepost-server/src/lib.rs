//! A fleet on the network: every op of the registry at `POST /v1/<noun>/<verb>`, and ops that only read also at `GET`.
//! Beside them are the webhooks of Slack and GitHub, the log as server-sent events, metrics and documentation.
//! Handlers decode, call and encode; the rules are in the engine.

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

mod docs;

mod jobs;

mod router;

mod server;

pub use app::App;
pub use jobs::run as run_jobs;
pub use router::router;
pub use server::Server;
pub use settings::{Secret, Settings, TlsFiles};
pub use telemetry::metrics::Usage;
