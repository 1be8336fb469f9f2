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
//! To add one, write `sources/NAME.rs` with a struct of its options and an `import` method, and name it in `sources.rs`
//! and below. Then give it a command: `commands/import/NAME.rs` of the command line, and in
//! `commands/import.rs` its `mod`, its variant of `From`, its arm in `run` and an example in the help.
//!
//! All sources share `sqlite` (a database of another system, opened read-only), `names` (names and times made of any text),
//! `fit` (texts cut to the engine's limits), `batch` (many items in several calls) and `report`.

mod batch;
mod boards;
mod fit;
mod item_types;
pub mod json_lines;
mod names;
mod report;
mod sources;
mod sqlite;
mod target;

pub use boards::{Renaming, is_board};
pub use report::{Report, counted};
pub use sources::{agent_swarm, jsonl, pm};
pub use target::Target;
