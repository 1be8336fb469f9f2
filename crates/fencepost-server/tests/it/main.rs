//! The server, in-process: the router with requests put in by hand, on both databases, with a clock that stands still.
//! What needs a real process and real sockets is in the command line's tests.

mod background;
mod connections;
mod documents;
mod door;
mod hooks;
mod keys;
mod router;
mod waiting;
mod world;

/// Nothing takes this long, on any machine, unless it hangs.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);
