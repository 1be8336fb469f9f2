//! The server, in-process: requests go straight to the router, on both databases, with a clock that stands still.
//! Tests with real processes and sockets are among the command line's tests.

mod access;
mod connections;
mod documents;
mod jobs;
mod keys;
mod layers;
mod mcp;
mod router;
mod storms;
mod waiting;
mod webhooks;
mod world;
