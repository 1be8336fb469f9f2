//! Servers in processes of their own: a fleet as `fence serve` has it, or a bare echo to compare it with.

use axum::{Json, Router, routing::post};
use fencepost::{Durability, Error, Fleet, Options, Result};
use fencepost_server::{App, Server, Settings};
use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
};
use tracing_subscriber::{filter::LevelFilter, layer::SubscriberExt, util::SubscriberInitExt};

/// What is served.
#[derive(Debug, Clone)]
pub enum What {
    /// Every POST is decoded and answered with what was sent.
    Echo,
    Fleet(String, Durability),
}

impl What {
    fn word(&self) -> String {
        match self {
            What::Echo => "echo".into(),
            What::Fleet(url, Durability::Full) => format!("full:{url}"),
            What::Fleet(url, Durability::Normal) => format!("normal:{url}"),
        }
    }

    fn parse(word: &str) -> Self {
        match word.split_once(':') {
            Some(("full", url)) => What::Fleet(url.into(), Durability::Full),
            Some(("normal", url)) => What::Fleet(url.into(), Durability::Normal),
            _ => What::Echo,
        }
    }
}

/// A server that runs; it ends when this is dropped.
#[derive(Debug)]
pub struct Served {
    child: Child,
    /// Where it listens.
    pub host: String,
}

impl Served {
    pub fn start(what: &What) -> Self {
        let me = std::env::current_exe().expect("this program");
        // Its log goes to a file, as a service's does. Deleted while it is open: nothing is left of it.
        let log = tempfile::tempfile_in("target").expect("a file for the log");
        let mut child = Command::new(me)
            .args(["--serve", &what.word()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("a server");
        let mut host = String::new();
        let said = child.stdout.as_mut().expect("its output");
        BufReader::new(said).read_line(&mut host).expect("its address");
        Self { child, host: host.trim().to_owned() }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It serves as long as it can be told something.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// What such a process does.
pub async fn serve(word: &str) -> Result<()> {
    match What::parse(word) {
        What::Echo => echo().await,
        What::Fleet(url, durability) => fleet(&url, durability).await,
    }
}

async fn fleet(url: &str, durability: Durability) -> Result<()> {
    // As `fence serve` has them where nobody watches.
    let lines = tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(LevelFilter::INFO).with(lines).init();
    let mut options = Options::default();
    options.durability = durability;
    let fleet = Fleet::open_with(url, options).await?;
    let listen = ([127, 0, 0, 1], 0).into();
    let server = Server::bind(App::new(fleet, Settings::new(listen))).await?;
    say(server.address());
    server.run(told_to_stop()).await
}

async fn echo() -> Result<()> {
    async fn answer(Json(body): Json<serde_json::Value>) -> Json<serde_json::Value> {
        Json(body)
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.map_err(Error::internal)?;
    say(listener.local_addr().map_err(Error::internal)?);
    use axum::serve::ListenerExt;
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    let router = Router::new().route("/{*path}", post(answer));
    axum::serve(listener, router).with_graceful_shutdown(told_to_stop()).await.map_err(Error::internal)
}

fn say(address: std::net::SocketAddr) {
    let _ = writeln!(std::io::stdout(), "{address}");
}

/// Until whoever started this lets go of it.
async fn told_to_stop() {
    let silence = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let _ = silence.await;
}
