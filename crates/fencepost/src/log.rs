//! The log of events, and the rules of access.

pub(crate) mod access;
mod event;

pub(crate) use event::{EPOCH, Event, Position, not_of_this_log};
