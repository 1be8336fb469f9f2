//! The remote half of a connection, against a server that says what a test tells it to.

mod again;
mod script;
mod wire;
