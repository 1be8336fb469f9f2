//! The conformance suite: every behaviour once, on SQLite and on PostgreSQL, with a clock that the tests move.

mod disk;
mod migrations;
mod postgres_failures;
mod postgres_store;
mod postgres_tls;
mod proxy;
mod smoke;
mod sqlite_store;
mod world;
