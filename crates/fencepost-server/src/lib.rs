//! A fleet on the network: every op of the registry at `POST /v1/<noun>/<verb>`, and those that only read also by
//! `GET`. Handlers translate (decode, call, encode); the rules are in the engine.

mod answer;
mod app;
mod call;
mod deliver;
mod door;
mod line;
mod log;
mod metrics;
mod query;
mod router;
mod serve;
mod settings;

pub use app::App;
pub use router::router;
pub use serve::Server;
pub use settings::Settings;
