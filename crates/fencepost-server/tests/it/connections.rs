//! Connections: limits on their number, and the write timeout for slow readers.

use crate::world::World;
use fencepost_server::{App, Server, Settings};
use fencepost_testing::{PATIENCE, eventually};
use serde_json::json;
use std::{net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::oneshot,
    task::JoinHandle,
};

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(3600);

/// A server with sockets, in this process.
struct Serving {
    app: App,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

impl Serving {
    async fn start(world: &World, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::new("127.0.0.1:0".parse().unwrap());
        settings.header_time = NEVER;
        change(&mut settings);
        let app = App::new(world.fleet.clone(), settings);
        let server = Server::bind(app.clone()).await.expect("an address");
        let (address, (stop, stopped)) = (server.address(), oneshot::channel());
        let ended = tokio::spawn(async move {
            let until = async {
                let _ = stopped.await;
            };
            server.run(until).await.expect("it was served");
        });
        Self { app, address, stop, ended }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connected")
    }

    /// Sends requests for more data than the socket buffers hold, and reads only the first line.
    async fn unread(&self, path: &str, times: usize) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("set");
        let mut stream = socket.connect(self.address).await.expect("connected");
        stream.write_all(get_request(path).repeat(times).as_bytes()).await.expect("sent");
        read_first_line(&mut stream).await;
        stream
    }

    async fn until_connected(&self, n: usize) {
        let reached = async {
            while self.app.usage().connections != n {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("this many are connected");
    }

    async fn end(self) {
        let _ = self.stop.send(());
        tokio::time::timeout(PATIENCE, self.ended).await.expect("it ends").expect("no panic");
    }
}

fn get_request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
}

/// Reads the first line of an answer and no more.
async fn read_first_line(stream: &mut TcpStream) {
    let mut line = [0; 15];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut line)).await.expect("in time").expect("an answer");
    assert_eq!(&line, b"HTTP/1.1 200 OK");
}

/// Reads to the end of the connection.
async fn read_to_end(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await;
    read.expect("it ends").expect("text");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_is_disconnected() {
    let world = World::sqlite().await;
    let plan: Vec<_> = (0..5000).map(|n| json!({ "title": format!("task {n}") })).collect();
    world.ok("task/plan", json!({ "board": "auth", "tasks": plan })).await;
    let serving = Serving::start(&world, |settings| settings.slow_reader = Duration::from_millis(200)).await;
    let mut unread = Vec::new();
    for _ in 0..10 {
        unread.push(serving.unread("/v1/openapi.json", 200).await);
        unread.push(serving.unread("/v1/events?since=start", 1).await);
    }
    serving.until_connected(0).await;
    eventually("nobody follows the log", async || serving.app.usage().waiters == 0).await;
    let mut reader = serving.connect().await;
    reader.write_all(get_request("/healthz").as_bytes()).await.expect("sent");
    read_first_line(&mut reader).await;
    serving.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_does_not_delay_a_stop() {
    let serving = Serving::start(&World::sqlite().await, |settings| {
        (settings.slow_reader, settings.stop_time) = (NEVER, Duration::from_millis(200));
    })
    .await;
    let app = serving.app.clone();
    let _unread = serving.unread("/v1/openapi.json", 200).await;
    serving.end().await;
    let closed = async {
        while app.usage().connections > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, closed).await.expect("it is disconnected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_limited() {
    let world = World::sqlite().await;
    let serving = Serving::start(&world, |settings| settings.address_connections = 2).await;
    let (one, _two) = (serving.connect().await, serving.connect().await);
    serving.until_connected(2).await;
    let refused = read_to_end(serving.connect().await).await;
    drop(one);
    serving.until_connected(1).await;
    let mut again = serving.connect().await;
    again
        .write_all(get_request("/healthz").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n").as_bytes())
        .await
        .unwrap();
    assert!(read_to_end(again).await.starts_with("HTTP/1.1 200 OK"), "one is gone, so another is accepted");

    let full = Serving::start(&world, |settings| settings.connections = 1).await;
    let _one = full.connect().await;
    full.until_connected(1).await;
    insta::assert_snapshot!(
        format!("{refused}\n\n{}", read_to_end(full.connect().await).await).replace('\r', "")
    );
    let metrics = crate::world::text(world.with(|_| {}).send(crate::world::get("/metrics")).await).await;
    assert!(metrics.contains("fence_connections 0\n"), "{metrics}");
}
