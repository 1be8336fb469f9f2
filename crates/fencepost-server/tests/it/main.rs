//! The server, in-process: the router with requests put in by hand, on both databases, with a clock that stands still.
//! What needs a real process and real sockets is in the command line's tests.

mod door;
mod router;
mod waiting;
mod world;
