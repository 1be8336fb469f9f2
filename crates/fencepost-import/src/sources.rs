//! One source system, one file.

pub mod agent_swarm;
pub mod jsonl;
pub mod pm;
