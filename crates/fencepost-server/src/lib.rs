//! A fleet on the network: every op of the registry at `POST /v1/<noun>/<verb>`, and those that only read also by
//! `GET`; beside them the hooks, by which providers tell of what happens. Handlers translate (decode, call, encode); the rules are in the engine.

mod answer;
mod app;
mod background;
mod call;
mod deliver;
mod docs;
mod door;
mod hooks;
mod keys;
mod line;
mod log;
mod manual;
mod metrics;
mod openapi;
mod paced;
mod places;
mod query;
mod recent;
mod room;
mod router;
mod serve;
mod settings;
mod span;
mod tls;

pub use app::App;
pub use background::work as background;
pub use router::router;
pub use serve::Server;
pub use settings::{Secret, Settings};
pub use tls::Files as TlsFiles;
