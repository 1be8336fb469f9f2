//! A server that answers by a script, and remembers what it was asked.

use serde_json::Value;
use std::sync::{Arc, Mutex};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    // Real time: how often a client asks is what some tests are about.
    time::Instant,
};

/// What it does about a request.
#[derive(Debug, Clone)]
pub enum Then {
    /// A status and a body.
    Say(u16, String),
    /// It has read the request, and closes the connection.
    HangUp,
    /// It has read the request, and never answers.
    Hold,
}

/// A request as it came in.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Which connection it came by.
    pub connection: usize,
    pub at: Instant,
    pub path: String,
    head: String,
    pub body: Value,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

#[derive(Debug)]
pub struct Script {
    pub url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Script {
    /// Follows the script, and does the last of it for ever.
    pub async fn of(script: impl Into<Vec<Then>>) -> Self {
        let script = script.into();
        Self::by(move |at, _| script[at.min(script.len() - 1)].clone()).await
    }

    /// Does what is said of the request with this number and path.
    pub async fn by(script: impl Fn(usize, &str) -> Then + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (script, asked) = (Arc::new(script), Arc::new(Mutex::new(Vec::new())));
        let all = asked.clone();
        tokio::spawn(async move {
            for connection in 0.. {
                let (stream, _) = listener.accept().await.expect("a connection");
                tokio::spawn(serve(stream, connection, script.clone(), all.clone()));
            }
        });
        Self { url, asked }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("not poisoned").clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    connection: usize,
    script: Arc<impl Fn(usize, &str) -> Then>,
    all: Arc<Mutex<Vec<Asked>>>,
) {
    while let Some((head, body)) = read(&mut stream).await {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let then = {
            let mut all = all.lock().expect("not poisoned");
            let then = script(all.len(), &path);
            all.push(Asked { connection, at: Instant::now(), path, head, body });
            then
        };
        match then {
            Then::HangUp => return,
            Then::Hold => std::future::pending().await,
            Then::Say(status, body) => {
                let length = body.len();
                let answer = format!("HTTP/1.1 {status} As Told\r\ncontent-length: {length}\r\n\r\n{body}");
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
