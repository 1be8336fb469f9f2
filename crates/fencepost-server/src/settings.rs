//! What can be set. The defaults are meant to be right.

use opentelemetry_sdk::trace::SdkTracer;
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// Where to listen, and a limit on everything.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    pub listen: SocketAddr,
    /// The names by which clients call this server, beside its address and `localhost`.
    pub names: Vec<String>,
    /// The certificate to present; without one, what is said is not encrypted.
    pub tls: Option<TlsFiles>,
    /// The largest body of a request, in bytes.
    pub body_size: usize,
    /// The largest event of a provider, in bytes: it comes without a key.
    pub hook_size: usize,
    /// How many bytes of bodies may be in memory at the same time, a quarter of it for what providers send. Of each body
    /// 16 KiB do not count.
    pub body_memory: usize,
    /// How many bytes of replies may be in memory at the same time, until their clients have read them. Of each reply 16 KiB
    /// do not count.
    pub reply_memory: usize,
    /// The largest head of a request (its line and its headers), in bytes; at least 8 KiB.
    pub header_size: usize,
    /// How long the head of a request may take to arrive.
    pub header_time: Duration,
    /// How long the body of a request may take to arrive.
    pub body_time: Duration,
    /// How long a request may take, apart from what it asked to wait.
    pub request_time: Duration,
    /// How many may be connected at the same time.
    pub connections: usize,
    /// How many of them may come from one address (of IPv6 from one /64 network); 0 is no limit.
    pub address_connections: usize,
    /// How many may wait, or follow the log, at the same time.
    pub waiters: usize,
    /// How many of them may be one key's, or where no key is asked for, one address's; 0 is no limit.
    pub key_waiters: usize,
    /// Requests a second for each key, and so many at once; 0 is no limit.
    pub key_rate: u32,
    /// The same for each address, where no key is asked for.
    pub open_rate: u32,
    /// Unknown keys a second that each address may try.
    pub guess_rate: u32,
    /// So long what the database said of a key is believed: one that is revoked may be used that much longer.
    pub key_trust: Duration,
    /// A follower of the log hears at least this often that the server is there.
    pub heartbeat: Duration,
    /// A client that takes nothing of what was sent for this long is cut off.
    pub slow_reader: Duration,
    /// Pages of a hundred events that are kept for a follower that is behind.
    pub reader_buffer: usize,
    /// How long a server that is told to stop waits for what was begun.
    pub stop_time: Duration,
    /// How often the server looks whether something is due that nobody asked for.
    pub tick: Duration,
    /// How often it removes what ended longer ago than `history`.
    pub prune_every: Duration,
    /// How long what ended is kept, at least 7 days; `None` keeps everything.
    pub history: Option<Duration>,
    /// What Slack signs with; two while it is changed. Without one, nothing is taken from Slack.
    pub slack_secret: Vec<Secret>,
    /// The same for GitHub.
    pub github_secret: Vec<Secret>,
    /// Who is told of each call, as a span; `None` is nobody.
    pub tracer: Option<SdkTracer>,
}

impl Settings {
    pub const fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            names: Vec::new(),
            tls: None,
            // A plan of 10,000 tasks, each with a word to say, is one request.
            body_size: 16 * 1024 * 1024,
            // An inbox keeps half a megabyte of an event, and Slack's are smaller. GitHub sends up to 25 MB, rarely: a push
            // of thousands of commits.
            hook_size: 4 * 1024 * 1024,
            // Six of the largest requests at once.
            body_memory: 128 * 1024 * 1024,
            reply_memory: 256 * 1024 * 1024,
            header_size: 16 * 1024,
            header_time: Duration::from_secs(10),
            body_time: Duration::from_secs(20),
            request_time: Duration::from_secs(60),
            // As many as wait at most, and as many more.
            connections: 8192,
            // Behind a proxy all come from its address; and a machine can have a thousand agents.
            address_connections: 2048,
            waiters: 4096,
            // A thousand agents may share a key.
            key_waiters: 1024,
            key_rate: 10_000,
            // Who can reach a loopback address can open the database, too.
            open_rate: 0,
            guess_rate: 20,
            key_trust: Duration::from_secs(1),
            heartbeat: Duration::from_secs(15),
            slow_reader: Duration::from_secs(10),
            reader_buffer: 8,
            // Longer than a body may take to arrive; a cluster usually kills after 30 s.
            stop_time: Duration::from_secs(25),
            tick: Duration::from_secs(1),
            prune_every: Duration::from_secs(60 * 60),
            history: Some(Duration::from_secs(30 * 24 * 60 * 60)),
            slack_secret: Vec::new(),
            github_secret: Vec::new(),
            tracer: None,
        }
    }
}

/// A certificate with its chain, and its key: PEM files.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// What a provider signs with, or a key's. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Nothing is no secret: anybody could sign with it.
    pub fn new(text: impl Into<String>) -> Option<Self> {
        Some(text.into()).filter(|text| !text.trim().is_empty()).map(Self)
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}
