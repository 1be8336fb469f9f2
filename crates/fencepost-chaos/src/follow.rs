//! Followers of the log: by pages, and as server-sent events. Each must receive the whole log in the same order.

use crate::{
    clients::{Client, text},
    world::World,
};
use fencepost::sync::lock;
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::{sleep, timeout},
};

/// The fields of an event that the oracle checks.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    position: String,
    pub kind: String,
    pub resource: String,
    pub fence: i64,
}

impl Entry {
    fn read(event: &Value) -> Self {
        Self {
            position: text(&event["position"]),
            kind: text(&event["kind"]),
            resource: text(&event["resource"]),
            fence: event["fence"].as_i64().unwrap_or(0),
        }
    }

    #[cfg(test)]
    pub fn new(kind: &str, resource: &str, fence: i64) -> Self {
        Self { position: "here".into(), kind: kind.into(), resource: resource.into(), fence }
    }

    pub fn show(&self) -> String {
        format!("{} {}@{} at {}", self.kind, self.resource, self.fence, self.position)
    }
}

/// The events that a follower has received.
pub type Received = Arc<Mutex<Vec<Entry>>>;

pub fn events(received: &Received) -> Vec<Entry> {
    lock(received).clone()
}

/// The whole log.
pub async fn read_all(client: &mut Client) -> Vec<Entry> {
    let (mut log, mut since) = (Vec::new(), Value::Null);
    loop {
        let (page, more) = next(client, &mut since, 0).await;
        log.extend(page);
        if !more {
            return log;
        }
    }
}

async fn next(client: &mut Client, since: &mut Value, wait: u64) -> (Vec<Entry>, bool) {
    let list = json!({ "since": since, "limit": 500, "wait_ms": wait });
    match client.call("event/list", &list).await {
        Ok(page) => {
            *since = page["position"].clone();
            let events = page["events"].as_array().into_iter().flatten();
            (events.map(Entry::read).collect(), page["more"] == true)
        }
        Err(refusal) => {
            client.oracle.violated(format!("event/list: {} {}", refusal.code, refusal.text));
            (Vec::new(), false)
        }
    }
}

/// Pages through `event/list` for ever.
pub async fn pages(mut client: Client, received: Received) {
    let mut since = Value::Null;
    loop {
        let (page, _) = next(&mut client, &mut since, 1_000).await;
        lock(&received).extend(page);
    }
}

/// Follows `/v1/events`, and reconnects with the last id whenever the stream ends.
pub async fn stream(world: Arc<World>, received: Received) {
    let mut last = "start".to_owned();
    for server in 1.. {
        let _ = listen(&world.url(server % world.servers.len()), &mut last, &received).await;
        sleep(Duration::from_millis(50)).await;
    }
}

/// Longer than the heartbeat of the servers.
const SILENCE: Duration = Duration::from_secs(5);

async fn listen(url: &str, last: &mut String, received: &Received) -> std::io::Result<()> {
    let host = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).await?;
    // HTTP/1.0, so that the body has no chunks.
    let get = format!("GET /v1/events?since={last} HTTP/1.0\r\nHost: {host}\r\n\r\n");
    stream.write_all(get.as_bytes()).await?;
    let mut lines = BufReader::new(stream).lines();
    while let Some(line) = timeout(SILENCE, lines.next_line()).await?? {
        if let Some(id) = line.strip_prefix("id: ") {
            *last = id.to_owned();
        }
        if let Some(event) =
            line.strip_prefix("data: ").and_then(|data| serde_json::from_str::<Value>(data).ok())
            && event["position"].is_string()
        {
            lock(received).push(Entry::read(&event));
        }
    }
    Ok(())
}
