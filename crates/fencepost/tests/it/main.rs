//! The conformance suite: every behaviour once, on SQLite and on PostgreSQL, with a clock that the tests move.

mod check;
mod dependencies;
mod embed;
mod events;
mod input;
mod plans;
mod ready;
mod registry;
mod smoke;
mod story;
mod tasks;
mod twins;
mod world;
