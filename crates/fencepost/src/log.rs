//! The log of what happened, and who may do what.

pub(crate) mod access;
mod event;

pub(crate) use event::{EPOCH, Event, Position, not_of_this_log};
