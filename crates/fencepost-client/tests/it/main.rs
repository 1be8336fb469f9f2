//! The remote half of a connection, against a server that answers by a script; and consumers, on every kind of fleet.

mod consumer;
mod http;
mod layers;
mod messages;
mod polling;
mod prompts;
mod retry;
mod scripted_server;
mod session_worker;
mod triggers;
