//! The log of events, the causes of items, and the rules of access.

pub(crate) mod access;
pub(crate) mod cause;
mod event;

pub(crate) use event::{EPOCH, Event, Position, not_of_this_log};
