//! The conformance suite: every behaviour once, on SQLite and on PostgreSQL, with a clock that the tests move.

mod dependencies;
mod events;
mod input;
mod plans;
mod ready;
mod smoke;
mod story;
mod tasks;
mod world;
