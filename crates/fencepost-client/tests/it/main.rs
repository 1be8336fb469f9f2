//! The remote half of a connection, against a server that answers by a script; and consumers, on every kind of fleet.

mod consumer;
mod http;
#[path = "../../../fencepost-server/tests/it/layers.rs"]
mod layers;
mod messages;
mod polling;
mod prompts;
mod retry;
mod scripted_server;
mod session_worker;
#[expect(dead_code, reason = "the engine's own stories have more than is needed here")]
#[path = "../../../fencepost/tests/it/story.rs"]
mod story;
mod triggers;
#[expect(dead_code, reason = "the engine's own world has more than is needed here")]
#[path = "../../../fencepost/tests/it/world.rs"]
mod world;
