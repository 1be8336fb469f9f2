//! The source systems, a module each.
//!
//! To add one:
//!
//! 1. Write `sources/NAME.rs` with a struct of its options and `fn import(self, target: &dyn Target)`, whose future is a
//!    `Result<Report>`. Name it here, and in `pub use sources` of `lib.rs`.
//! 2. Give it a command: `commands/import/NAME.rs` of the command line, and in `commands/import.rs` its `mod`, its variant of
//!    `From`, its arm in `run` and an example in the help.
//!
//! All sources share `sqlite` (a database of another system, opened read-only), `names` (names and times made of any text),
//! `fit` (texts cut to the engine's limits), `batch` (many items in several calls) and `report`.

pub mod agent_swarm;
pub mod jsonl;
pub mod pm;
