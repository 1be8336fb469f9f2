//! The tools on a fleet in this process, by a client in this process.

mod layers;
