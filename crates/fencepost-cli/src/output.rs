//! Everything that a command prints: standard output and standard error, tables, times, colours, help.

pub mod events;
pub mod help;
pub mod next_step;
pub mod progress;
pub mod streams;
pub mod table;
pub mod tasks;
pub mod terminal;
pub mod text;
pub mod untrusted;

pub use terminal::Terminal;
