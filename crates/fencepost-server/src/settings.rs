//! What can be set. The defaults are meant to be right.

use std::{net::SocketAddr, time::Duration};

/// A limit on everything, and where to listen.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    pub listen: SocketAddr,
    /// The largest body of a request, in bytes.
    pub body_size: usize,
    /// The largest head of a request (its line and its headers), in bytes.
    pub header_size: usize,
    /// How long the head of a request may take to arrive.
    pub header_time: Duration,
    /// How long the body of a request may take to arrive.
    pub body_time: Duration,
    /// How long a request may take, apart from what it asked to wait.
    pub request_time: Duration,
}

impl Settings {
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            body_size: 2 * 1024 * 1024,
            header_size: 16 * 1024,
            header_time: Duration::from_secs(10),
            body_time: Duration::from_secs(20),
            request_time: Duration::from_secs(60),
        }
    }
}
