//! The server, in-process: the router with requests put in by hand, on both databases, with a clock that stands still.
//! What needs a real process and real sockets is in the command line's tests.

mod background;
mod documents;
mod door;
mod hooks;
mod keys;
mod router;
mod waiting;
mod world;
