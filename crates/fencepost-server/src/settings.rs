//! The settings of a server. The defaults fit most servers.

use fencepost::storm::Setting;
use opentelemetry_sdk::trace::SdkTracer;
use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

/// The address to listen on, and a limit on everything.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    pub listen: SocketAddr,
    /// The names that clients may call this server by, beside its address and `localhost`.
    pub names: Vec<String>,
    /// The TLS certificate. `None` serves without encryption.
    pub tls: Option<TlsFiles>,
    /// The largest body of a request, in bytes.
    pub body_size: usize,
    /// The largest body of a webhook, in bytes. Webhooks come without a key.
    pub hook_size: usize,
    /// The memory budget for request bodies, in bytes, a quarter of it for webhooks. The first 16 KiB of each body do not
    /// count.
    pub body_memory: usize,
    /// The memory budget for replies that clients have not read yet, in bytes. The first 16 KiB of each reply do not count.
    pub reply_memory: usize,
    /// The largest head of a request (the request line and the headers), in bytes; at least 8 KiB.
    pub header_size: usize,
    /// How long the head of a request may take to arrive.
    pub header_time: Duration,
    /// How long the body of a request may take to arrive.
    pub body_time: Duration,
    /// How long a request may take, beside its own `wait_ms`.
    pub request_time: Duration,
    /// Connections at the same time.
    pub connections: usize,
    /// Connections from one address (of IPv6 from one /64 network); 0 is no limit.
    pub address_connections: usize,
    /// Requests that wait or follow the log at the same time.
    pub waiters: usize,
    /// The same for each key, or for each address where no key is needed; 0 is no limit.
    pub key_waiters: usize,
    /// Requests a second for each key; one second's worth may come at once; 0 is no limit.
    pub key_rate: u32,
    /// The same for each address where no key is needed.
    pub open_rate: u32,
    /// Wrong keys and signatures a second for each address.
    pub guess_rate: u32,
    /// How long a key is cached. A revoked key may be used for this long.
    pub key_trust: Duration,
    /// The longest pause between two messages to a follower of the log.
    pub heartbeat: Duration,
    /// A client that reads nothing for this long is disconnected.
    pub slow_reader: Duration,
    /// Pages of a hundred events that are buffered for a slow follower.
    pub reader_buffer: usize,
    /// How long a stop waits for running calls.
    pub stop_time: Duration,
    /// How often the server checks whether leases have expired, and whether unread posts wake an agent.
    pub tick: Duration,
    /// Settings of the fleet's scheduler from the environment of this server. They become the fleet's when it starts.
    pub environment: BTreeMap<Setting, i64>,
    /// How often the server tells the fleet that this is still its environment.
    pub environment_every: Duration,
    /// How often the server prunes.
    pub prune_every: Duration,
    /// How long finished items and events are kept, at least 7 days; `None` keeps everything.
    pub history: Option<Duration>,
    /// The secret that Slack signs with; two during a change. Without one, Slack's webhook is off.
    pub slack_secret: Vec<Secret>,
    /// The same for GitHub.
    pub github_secret: Vec<Secret>,
    /// Collects a span for each call; `None` collects none.
    pub tracer: Option<SdkTracer>,
}

impl Settings {
    pub const fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            names: Vec::new(),
            tls: None,
            // A plan of 10,000 tasks with short texts is one request.
            body_size: 16 * 1024 * 1024,
            // An inbox stores half a megabyte of an event. Slack's events are smaller. GitHub's go up to 25 MB, rarely: a
            // push of thousands of commits.
            hook_size: 4 * 1024 * 1024,
            // Six of the largest requests at once.
            body_memory: 128 * 1024 * 1024,
            reply_memory: 256 * 1024 * 1024,
            header_size: 16 * 1024,
            header_time: Duration::from_secs(10),
            body_time: Duration::from_secs(20),
            request_time: Duration::from_secs(60),
            // As many as may wait, and as many again.
            connections: 8192,
            // Behind a proxy all connections have its address, and one machine may run a thousand agents.
            address_connections: 2048,
            waiters: 4096,
            // A thousand agents may share a key.
            key_waiters: 1024,
            key_rate: 10_000,
            // Callers on this machine can open the database, too.
            open_rate: 0,
            guess_rate: 20,
            key_trust: Duration::from_secs(1),
            heartbeat: Duration::from_secs(15),
            slow_reader: Duration::from_secs(10),
            reader_buffer: 8,
            // Longer than a body may take to arrive; a cluster usually kills after 30 s.
            stop_time: Duration::from_secs(25),
            tick: Duration::from_secs(1),
            environment: BTreeMap::new(),
            // The fleet forgets a server after five minutes.
            environment_every: Duration::from_secs(60),
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

/// The secret of a key, or of a provider. Its `Debug` output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// `None` for an empty text: anybody could sign with it.
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
