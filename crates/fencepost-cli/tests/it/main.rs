//! `fence` as a person or an agent runs it: real processes in a sealed environment, on both databases.

mod commands;
mod crash;
mod processes;
mod readme;
mod sealed;
mod supervise;
mod verbs;
