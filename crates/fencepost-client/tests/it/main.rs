//! The remote half of a connection, against a server that says what a test tells it to; and consumers, on every kind
//! of fleet.

mod again;
mod consumer;
mod letters;
mod pairing;
mod polling;
mod script;
mod session_worker;
#[expect(dead_code, reason = "the engine's own stories have more than is needed here")]
#[path = "../../../fencepost/tests/it/story.rs"]
mod story;
mod triggers;
mod wire;
#[expect(dead_code, reason = "the engine's own world has more than is needed here")]
#[path = "../../../fencepost/tests/it/world.rs"]
mod world;
