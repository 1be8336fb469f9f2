//! Servers in processes of their own: a fleet as `fence serve` serves it, or a bare echo to compare it with.

use axum::{Json, Router, routing::post};
use fencepost::{Durability, Error, Fleet, Options, Result};
use fencepost_server::{App, Server, Settings};
use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
};
use tracing_subscriber::{filter::LevelFilter, layer::SubscriberExt, util::SubscriberInitExt};

/// An echo, or a fleet.
#[derive(Debug, Clone)]
pub enum Served {
    /// Every POST is decoded and sent back.
    Echo,
    Fleet(String, Durability),
}

impl Served {
    fn word(&self) -> String {
        match self {
            Served::Echo => "echo".into(),
            Served::Fleet(url, Durability::Full) => format!("full:{url}"),
            Served::Fleet(url, Durability::Normal) => format!("normal:{url}"),
        }
    }

    fn parse(word: &str) -> Self {
        match word.split_once(':') {
            Some(("full", url)) => Served::Fleet(url.into(), Durability::Full),
            Some(("normal", url)) => Served::Fleet(url.into(), Durability::Normal),
            _ => Served::Echo,
        }
    }
}

/// A running server. Dropping this ends it.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    /// The address that it listens on.
    pub host: String,
}

impl ServerProcess {
    pub fn start(what: &Served) -> Self {
        let me = std::env::current_exe().expect("this program");
        // Its log goes to a file, like a service's. The file is deleted while it is open, so nothing is left of it.
        let log = tempfile::tempfile_in("target").expect("a file for the log");
        let mut child = Command::new(me)
            .args(["--serve", &what.word()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("a server");
        let mut host = String::new();
        let output = child.stdout.as_mut().expect("its output");
        BufReader::new(output).read_line(&mut host).expect("its address");
        Self { child, host: host.trim().to_owned() }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It serves until its standard input ends.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The main function of such a process.
pub async fn serve(word: &str) -> Result<()> {
    match Served::parse(word) {
        Served::Echo => echo().await,
        Served::Fleet(url, durability) => fleet(&url, durability).await,
    }
}

async fn fleet(url: &str, durability: Durability) -> Result<()> {
    // Logs as `fence serve` writes them without a terminal.
    let lines = tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(LevelFilter::INFO).with(lines).init();
    let mut options = Options::default();
    options.durability = durability;
    let fleet = Fleet::open_with(url, options).await?;
    let listen = ([127, 0, 0, 1], 0).into();
    let server = Server::bind(App::new(fleet, Settings::new(listen))).await?;
    print_address(server.address());
    server.run(stdin_ended()).await
}

async fn echo() -> Result<()> {
    async fn answer(Json(body): Json<serde_json::Value>) -> Json<serde_json::Value> {
        Json(body)
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.map_err(Error::internal)?;
    print_address(listener.local_addr().map_err(Error::internal)?);
    use axum::serve::ListenerExt;
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    let router = Router::new().route("/{*path}", post(answer));
    axum::serve(listener, router).with_graceful_shutdown(stdin_ended()).await.map_err(Error::internal)
}

fn print_address(address: std::net::SocketAddr) {
    let _ = writeln!(std::io::stdout(), "{address}");
}

/// Returns when the process that started this one is gone or closes the pipe.
async fn stdin_ended() {
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let _ = ended.await;
}
