//! The documents: every block of them is run as written, or is of a kind that says how it is checked; every link leads
//! somewhere.

mod console;
mod links;
mod page;
mod scenarios;

pub use console::matches;
pub use page::scenario;
