//! The limits and times of `fence serve`. The defaults are the server's.

use clap::Args;
use fencepost::Millis;
use fencepost_server::Settings;
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
    time::Duration,
};

const DEFAULT: Settings = Settings::new(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
/// Requests may be repeated for this long.
const HISTORY_LEAST: Duration = Duration::from_secs(7 * 24 * 60 * 60);

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct Limits {
    /// The largest body of a request, in bytes
    #[arg(long, value_name = "BYTES", env = "FENCE_BODY_SIZE", hide_env_values = true, default_value_t = DEFAULT.body_size)]
    body_size: usize,
    /// The largest event of Slack or GitHub, in bytes; GitHub sends up to 25 MB
    #[arg(long, value_name = "BYTES", env = "FENCE_HOOK_SIZE", hide_env_values = true, default_value_t = DEFAULT.hook_size)]
    hook_size: usize,
    /// Memory for large requests, in bytes; a quarter of it is for Slack and GitHub
    #[arg(long, value_name = "BYTES", env = "FENCE_BODY_MEMORY", hide_env_values = true, default_value_t = DEFAULT.body_memory)]
    body_memory: usize,
    /// Memory for large replies that clients have not read yet, in bytes
    #[arg(long, value_name = "BYTES", env = "FENCE_REPLY_MEMORY", hide_env_values = true, default_value_t = DEFAULT.reply_memory)]
    reply_memory: usize,
    /// The largest head of a request, in bytes; at least 8 KiB
    #[arg(long, value_name = "BYTES", env = "FENCE_HEADER_SIZE", hide_env_values = true, default_value_t = DEFAULT.header_size)]
    header_size: usize,
    /// The longest time for the head of a request to arrive
    #[arg(long, value_name = "TIME", env = "FENCE_HEADER_TIME", hide_env_values = true, value_parser = time, default_value_t = millis(DEFAULT.header_time))]
    header_time: Millis,
    /// The longest time for the body of a request to arrive
    #[arg(long, value_name = "TIME", env = "FENCE_BODY_TIME", hide_env_values = true, value_parser = time, default_value_t = millis(DEFAULT.body_time))]
    body_time: Millis,
    /// The longest time for a request, apart from the wait that it asked for
    #[arg(long, value_name = "TIME", env = "FENCE_REQUEST_TIME", hide_env_values = true, value_parser = time, default_value_t = millis(DEFAULT.request_time))]
    request_time: Millis,
    /// The most connections; fewer if the system allows the process fewer open files
    #[arg(long, value_name = "N", env = "FENCE_CONNECTIONS", hide_env_values = true, default_value_t = DEFAULT.connections)]
    connections: usize,
    /// The most connections from one address; 0 is no limit. Behind a proxy all come from its address
    #[arg(long, value_name = "N", env = "FENCE_ADDRESS_CONNECTIONS", hide_env_values = true, default_value_t = DEFAULT.address_connections)]
    address_connections: usize,
    /// The most requests that wait or follow the log
    #[arg(long, value_name = "N", env = "FENCE_WAITERS", hide_env_values = true, default_value_t = DEFAULT.waiters)]
    waiters: usize,
    /// The most of them for one key, or for one address while the fleet has no keys; 0 is no limit
    #[arg(long, value_name = "N", env = "FENCE_KEY_WAITERS", hide_env_values = true, default_value_t = DEFAULT.key_waiters)]
    key_waiters: usize,
    /// The most requests a second for each key; 0 is no limit
    #[arg(long, value_name = "N", env = "FENCE_KEY_RATE", hide_env_values = true, default_value_t = DEFAULT.key_rate)]
    key_rate: u32,
    /// The most requests a second for each address, while the fleet has no keys; 0 is no limit
    #[arg(long, value_name = "N", env = "FENCE_OPEN_RATE", hide_env_values = true, default_value_t = DEFAULT.open_rate)]
    open_rate: u32,
    /// The most unknown keys a second from each address; more lock out nobody who has a key; 0 is no limit
    #[arg(long, value_name = "N", env = "FENCE_GUESS_RATE", hide_env_values = true, default_value_t = DEFAULT.guess_rate)]
    guess_rate: u32,
    /// A client that reads nothing for this long is disconnected
    #[arg(long, value_name = "TIME", env = "FENCE_SLOW_READER", hide_env_values = true, value_parser = time, default_value_t = millis(DEFAULT.slow_reader))]
    slow_reader: Millis,
    /// The most pages, of a hundred events each, that are kept for a slow follower of the log
    #[arg(long, value_name = "N", env = "FENCE_READER_BUFFER", hide_env_values = true, default_value_t = DEFAULT.reader_buffer)]
    reader_buffer: usize,
    #[command(flatten)]
    intervals: Intervals,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Times")]
struct Intervals {
    /// How long the server caches a key; a revoked key works for this much longer
    #[arg(long, value_name = "TIME", env = "FENCE_KEY_TRUST", hide_env_values = true, value_parser = time, default_value_t = millis(DEFAULT.key_trust))]
    key_trust: Millis,
    /// How often a follower of the log gets a sign of life if nothing happens
    #[arg(long, value_name = "TIME", env = "FENCE_HEARTBEAT", hide_env_values = true, value_parser = time, default_value_t = millis(DEFAULT.heartbeat))]
    heartbeat: Millis,
    /// How long a stopping server waits for open requests
    #[arg(long, value_name = "TIME", env = "FENCE_STOP_TIME", hide_env_values = true, value_parser = time, default_value_t = millis(DEFAULT.stop_time))]
    stop_time: Millis,
    /// How often the server runs its jobs: it expires leases, and wakes agents for unread posts
    #[arg(long, value_name = "TIME", env = "FENCE_TICK", hide_env_values = true, value_parser = time, default_value_t = millis(DEFAULT.tick))]
    tick: Millis,
    /// How often the server removes data older than --history
    #[arg(long, value_name = "TIME", env = "FENCE_PRUNE_EVERY", hide_env_values = true, value_parser = time, default_value_t = millis(DEFAULT.prune_every))]
    prune_every: Millis,
}

impl Limits {
    pub fn set(self, settings: &mut Settings) {
        settings.body_size = self.body_size;
        settings.hook_size = self.hook_size;
        settings.body_memory = self.body_memory;
        settings.reply_memory = self.reply_memory;
        settings.header_size = self.header_size;
        settings.connections = self.connections;
        settings.address_connections = self.address_connections;
        settings.waiters = self.waiters;
        settings.key_waiters = self.key_waiters;
        settings.key_rate = self.key_rate;
        settings.open_rate = self.open_rate;
        settings.guess_rate = self.guess_rate;
        settings.reader_buffer = self.reader_buffer;
        settings.header_time = span(self.header_time);
        settings.body_time = span(self.body_time);
        settings.request_time = span(self.request_time);
        settings.slow_reader = span(self.slow_reader);
        settings.key_trust = span(self.intervals.key_trust);
        settings.heartbeat = span(self.intervals.heartbeat);
        settings.stop_time = span(self.intervals.stop_time);
        settings.tick = span(self.intervals.tick);
        settings.prune_every = span(self.intervals.prune_every);
    }
}

/// How long finished items are kept; `None` is for ever.
#[derive(Debug, Clone, Copy)]
pub struct History(Option<Duration>);

impl History {
    pub fn span(self) -> Option<Duration> {
        self.0
    }
}

impl Default for History {
    fn default() -> Self {
        Self(DEFAULT.history)
    }
}

impl std::fmt::Display for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            None => f.write_str("ever"),
            Some(span) => millis(span).fmt(f),
        }
    }
}

impl FromStr for History {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let span = if text == "ever" { None } else { Some(span(time(text)?)) };
        match span {
            Some(short) if short < HISTORY_LEAST => {
                Err("less than 7d: requests may be repeated for so long".into())
            }
            span => Ok(Self(span)),
        }
    }
}

/// A duration of more than 0.
fn time(text: &str) -> Result<Millis, String> {
    match super::super::duration(text)? {
        Millis(..=0) => Err("it must be more than 0".into()),
        span => Ok(span),
    }
}

fn millis(span: Duration) -> Millis {
    Millis(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
}

fn span(millis: Millis) -> Duration {
    Duration::from_millis(millis.0.unsigned_abs())
}
