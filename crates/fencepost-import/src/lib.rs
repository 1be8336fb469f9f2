//! Brings the data of other systems into a fleet, and a whole fleet in and out of a file.
//!
//! An importer reads a file, translates its contents into the items of `task/import` and `admin/import`, and reports
//! everything that it could not carry over. It never writes to the file. Importing the same file again changes nothing.
//!
//! Each source system has a module of its own in `sources/`:
//!
//! - `pm`: the task list of a `.pm` directory
//! - `agent_swarm`: the database of agent-swarm
//! - `jsonl`: lines of JSON, written by hand, by a script or by `fence export`
//!
//! `sources.rs` says how to add one.

mod batch;
mod boards;
mod fit;
mod item_types;
pub mod json_lines;
pub mod limits;
mod names;
mod report;
mod sources;
mod sqlite;
mod target;

pub use boards::{Renaming, is_board};
pub use report::{Report, counted};
pub use sources::{agent_swarm, jsonl, pm};
pub use target::Target;
