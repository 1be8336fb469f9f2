//! A server that answers by a script and records the requests.

use serde_json::Value;
use std::sync::{Arc, Mutex};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    // Real time: some tests are about how often a client sends.
    time::Instant,
};

/// How the server reacts to a request.
#[derive(Debug, Clone)]
pub enum Action {
    /// Answers with a status and a body.
    Answer(u16, String),
    /// Reads the request and closes the connection.
    HangUp,
    /// Reads the request and never answers.
    Hold,
}

/// A request as it came in.
#[derive(Debug, Clone)]
pub struct Received {
    /// The number of its connection.
    pub connection: usize,
    pub at: Instant,
    pub path: String,
    head: String,
    pub body: Value,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

#[derive(Debug)]
pub struct ScriptedServer {
    pub url: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl ScriptedServer {
    /// Follows the script, and repeats its last action.
    pub async fn of(script: impl Into<Vec<Action>>) -> Self {
        let script = script.into();
        Self::by(move |at, _| script[at.min(script.len() - 1)].clone()).await
    }

    /// Reacts to each request by its number and path.
    pub async fn by(script: impl Fn(usize, &str) -> Action + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (script, received) = (Arc::new(script), Arc::new(Mutex::new(Vec::new())));
        let all = received.clone();
        tokio::spawn(async move {
            for connection in 0.. {
                let (stream, _) = listener.accept().await.expect("a connection");
                tokio::spawn(serve(stream, connection, script.clone(), all.clone()));
            }
        });
        Self { url, received }
    }

    pub fn received(&self) -> Vec<Received> {
        self.received.lock().expect("not poisoned").clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    connection: usize,
    script: Arc<impl Fn(usize, &str) -> Action>,
    all: Arc<Mutex<Vec<Received>>>,
) {
    while let Some((head, body)) = read(&mut stream).await {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let action = {
            let mut all = all.lock().expect("not poisoned");
            let action = script(all.len(), &path);
            all.push(Received { connection, at: Instant::now(), path, head, body });
            action
        };
        match action {
            Action::HangUp => return,
            Action::Hold => std::future::pending().await,
            Action::Answer(status, body) => {
                let length = body.len();
                let answer = format!("HTTP/1.1 {status} Scripted\r\ncontent-length: {length}\r\n\r\n{body}");
                stream.write_all(answer.as_bytes()).await.expect("written");
            }
        }
    }
}

async fn read(stream: &mut TcpStream) -> Option<(String, Value)> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.to_lowercase().split("content-length: ").nth(1)?.lines().next()?.parse().ok()?;
            if body.len() >= length {
                return Some((head.to_owned(), serde_json::from_str(body).expect("JSON")));
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}
