//! The conformance suite: every behaviour once, on SQLite and on PostgreSQL, with a clock that the tests move.

mod interleavings;
mod leases;
mod locks;
mod races;
mod requests;
mod smoke;
mod steps;
mod world;
