//! The source systems, a module each. The crate's page says how to add one.

pub mod agent_swarm;
pub mod jsonl;
pub mod pm;
