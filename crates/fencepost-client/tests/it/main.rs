//! The remote half of a connection, against a server that says what a test tells it to; and consumers, on every kind
//! of fleet.

mod again;
mod consumer;
mod letters;
mod pairing;
mod script;
mod session_worker;
mod wire;
#[expect(dead_code, reason = "the engine's own world has more than is needed here")]
#[path = "../../../fencepost/tests/it/world.rs"]
mod world;
