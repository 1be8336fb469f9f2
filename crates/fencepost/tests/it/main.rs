//! The conformance suite: every behaviour once, on SQLite and on PostgreSQL, with a clock that the tests move.

mod check;
mod dependencies;
mod disk;
mod embed;
mod events;
mod input;
mod interleavings;
mod leases;
mod locks;
mod migrations;
mod plans;
mod postgres_failures;
mod postgres_store;
mod postgres_tls;
mod proxy;
mod races;
mod ready;
mod registry;
mod requests;
mod smoke;
mod sqlite_store;
mod steps;
mod story;
mod tasks;
mod twins;
mod world;
