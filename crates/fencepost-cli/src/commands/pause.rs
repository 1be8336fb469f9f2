//! `fence pause` is `fence agent pause`.

pub use super::agent::Pause;
