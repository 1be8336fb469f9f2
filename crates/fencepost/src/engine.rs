//! The engine: the op, its prelude, and how a fleet runs it, delivers its reply and waits.

pub(crate) mod delivery;
mod embedded;
pub(crate) mod fleet;
pub mod op;
pub(crate) mod prelude;
pub(crate) mod run_to_end;
pub(crate) mod waiting;
