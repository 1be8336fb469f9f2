//! What `fence serve` can be told of limits and times. What it does unless told is the server's to know.

use clap::Args;
use fencepost::Millis;
use fencepost_server::Settings;
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
    time::Duration,
};

const USUAL: Settings = Settings::new(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
/// So long anything may be asked for again.
const HISTORY_LEAST: Duration = Duration::from_secs(7 * 24 * 60 * 60);

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct Limits {
    /// The largest body of a request, in bytes
    #[arg(long, value_name = "BYTES", env = "FENCE_BODY_SIZE", hide_env_values = true, default_value_t = USUAL.body_size)]
    body_size: usize,
    /// The largest event that is taken from Slack or GitHub, in bytes; GitHub sends up to 25 MB
    #[arg(long, value_name = "BYTES", env = "FENCE_HOOK_SIZE", hide_env_values = true, default_value_t = USUAL.hook_size)]
    hook_size: usize,
    /// How many bytes of large requests may be in memory at the same time, a quarter of it for Slack and GitHub
    #[arg(long, value_name = "BYTES", env = "FENCE_BODY_MEMORY", hide_env_values = true, default_value_t = USUAL.body_memory)]
    body_memory: usize,
    /// How many bytes of large replies may be in memory at the same time, until their clients have read them
    #[arg(long, value_name = "BYTES", env = "FENCE_REPLY_MEMORY", hide_env_values = true, default_value_t = USUAL.reply_memory)]
    reply_memory: usize,
    /// The largest head of a request, in bytes; at least 8 KiB
    #[arg(long, value_name = "BYTES", env = "FENCE_HEADER_SIZE", hide_env_values = true, default_value_t = USUAL.header_size)]
    header_size: usize,
    /// How long the head of a request may take to arrive
    #[arg(long, value_name = "TIME", env = "FENCE_HEADER_TIME", hide_env_values = true, value_parser = time, default_value_t = millis(USUAL.header_time))]
    header_time: Millis,
    /// How long the body of a request may take to arrive
    #[arg(long, value_name = "TIME", env = "FENCE_BODY_TIME", hide_env_values = true, value_parser = time, default_value_t = millis(USUAL.body_time))]
    body_time: Millis,
    /// How long a request may take, apart from what it asked to wait
    #[arg(long, value_name = "TIME", env = "FENCE_REQUEST_TIME", hide_env_values = true, value_parser = time, default_value_t = millis(USUAL.request_time))]
    request_time: Millis,
    /// How many may be connected at the same time; fewer, if the system allows the process fewer open files
    #[arg(long, value_name = "N", env = "FENCE_CONNECTIONS", hide_env_values = true, default_value_t = USUAL.connections)]
    connections: usize,
    /// How many of them may come from one address; 0 is no limit. Behind a proxy all come from its address
    #[arg(long, value_name = "N", env = "FENCE_ADDRESS_CONNECTIONS", hide_env_values = true, default_value_t = USUAL.address_connections)]
    address_connections: usize,
    /// How many may wait, or follow the log, at the same time
    #[arg(long, value_name = "N", env = "FENCE_WAITERS", hide_env_values = true, default_value_t = USUAL.waiters)]
    waiters: usize,
    /// How many of them may be one key's, or where no key is asked for, one address's; 0 is no limit
    #[arg(long, value_name = "N", env = "FENCE_KEY_WAITERS", hide_env_values = true, default_value_t = USUAL.key_waiters)]
    key_waiters: usize,
    /// Requests a second for each key; 0 is no limit
    #[arg(long, value_name = "N", env = "FENCE_KEY_RATE", hide_env_values = true, default_value_t = USUAL.key_rate)]
    key_rate: u32,
    /// Requests a second for each address, where no key is asked for; 0 is no limit
    #[arg(long, value_name = "N", env = "FENCE_OPEN_RATE", hide_env_values = true, default_value_t = USUAL.open_rate)]
    open_rate: u32,
    /// Unknown keys a second that each address may try; 0 is no limit
    #[arg(long, value_name = "N", env = "FENCE_GUESS_RATE", hide_env_values = true, default_value_t = USUAL.guess_rate)]
    guess_rate: u32,
    /// How long a client may leave unread what was sent
    #[arg(long, value_name = "TIME", env = "FENCE_SLOW_READER", hide_env_values = true, value_parser = time, default_value_t = millis(USUAL.slow_reader))]
    slow_reader: Millis,
    /// How many pages, of a hundred events each, are kept for a follower that is behind
    #[arg(long, value_name = "N", env = "FENCE_READER_BUFFER", hide_env_values = true, default_value_t = USUAL.reader_buffer)]
    reader_buffer: usize,
    #[command(flatten)]
    intervals: Intervals,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Times")]
struct Intervals {
    /// How long a key is believed: one that was revoked may be used that much longer
    #[arg(long, value_name = "TIME", env = "FENCE_KEY_TRUST", hide_env_values = true, value_parser = time, default_value_t = millis(USUAL.key_trust))]
    key_trust: Millis,
    /// How often a follower of the log hears at least that the server is there
    #[arg(long, value_name = "TIME", env = "FENCE_HEARTBEAT", hide_env_values = true, value_parser = time, default_value_t = millis(USUAL.heartbeat))]
    heartbeat: Millis,
    /// How long a server that is told to stop waits for what was begun
    #[arg(long, value_name = "TIME", env = "FENCE_STOP_TIME", hide_env_values = true, value_parser = time, default_value_t = millis(USUAL.stop_time))]
    stop_time: Millis,
    /// How often the server looks for what is due that nobody asked for
    #[arg(long, value_name = "TIME", env = "FENCE_TICK", hide_env_values = true, value_parser = time, default_value_t = millis(USUAL.tick))]
    tick: Millis,
    /// How often what is older than `history` is removed
    #[arg(long, value_name = "TIME", env = "FENCE_PRUNE_EVERY", hide_env_values = true, value_parser = time, default_value_t = millis(USUAL.prune_every))]
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

/// How long what ended is kept; `None` is for ever.
#[derive(Debug, Clone, Copy)]
pub struct History(Option<Duration>);

impl History {
    pub fn span(self) -> Option<Duration> {
        self.0
    }
}

impl Default for History {
    fn default() -> Self {
        Self(USUAL.history)
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
                Err("less than 7d: so long anything may be asked for again".into())
            }
            span => Ok(Self(span)),
        }
    }
}

/// Nothing is done every 0 s.
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
