//! The source systems, a module each. `lib.rs` says how to add one.

pub mod agent_swarm;
pub mod jsonl;
pub mod pm;
