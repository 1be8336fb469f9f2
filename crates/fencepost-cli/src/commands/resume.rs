//! `fence resume` is `fence agent resume`.

pub use super::agent::Resume;
