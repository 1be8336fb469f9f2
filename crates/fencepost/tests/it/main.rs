//! The conformance suite: every behaviour once, on SQLite and on PostgreSQL, with a clock that the tests move.

mod smoke;
mod world;
