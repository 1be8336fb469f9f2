//! Live views on the terminal.
//!
//! A view is a model, a pure function that draws it and a pure function that answers keys. The caller fills the model and does what
//! the keys ask for. Text is laid out by `output`, so that untrusted text is safe in a view for the same reason as in a page.

pub mod fleet;
mod screen;
mod text;
pub mod work;

pub use screen::{Input, Screen};
pub use text::dollars;
