//! HTTP clients, as cheap as possible, because they share the machine with the server: a connection is one task that sends
//! a request, reads the answer and sends the next. No pool, no retries.

use crate::table::Spans;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, StatusCode,
    client::conn::http1::{self, SendRequest},
    header,
};
use hyper_util::rt::TokioIo;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// One keep-alive connection.
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    took: Vec<Duration>,
}

pub struct Answer {
    pub status: StatusCode,
    pub body: Bytes,
}

impl Client {
    pub async fn post(&mut self, path: &'static str, body: String) -> Answer {
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::HOST, &self.host)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(body))
            .expect("a request");
        let start = Instant::now();
        let response = self.sender.send_request(request).await.expect("an answer");
        let status = response.status();
        let body = response.into_body().collect().await.expect("its body").to_bytes();
        self.took.push(start.elapsed());
        Answer { status, body }
    }

    /// Like [`Self::post`], but the call must succeed.
    pub async fn done(&mut self, path: &'static str, body: String) -> Bytes {
        let answer = self.post(path, body).await;
        assert!(answer.status.is_success(), "{path}: {}", String::from_utf8_lossy(&answer.body));
        answer.body
    }
}

/// Connects, and runs `talk` with the connection in the same task.
pub async fn with_client<T>(host: &str, talk: impl AsyncFnOnce(&mut Client) -> T) -> (T, Vec<Duration>) {
    let stream = TcpStream::connect(host).await.expect("connected");
    stream.set_nodelay(true).expect("no delay");
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
    let mut client = Client { sender, host: host.to_owned(), took: Vec::new() };
    tokio::select! {
        result = talk(&mut client) => (result, client.took),
        ended = connection => panic!("the server hung up: {ended:?}"),
    }
}

/// One round of a connection; `false` if there was nothing to do.
pub trait Step: Clone + Send + Sync + 'static {
    fn step(&self, client: &mut Client, connection: usize) -> impl Future<Output = bool> + Send;
}

/// Runs this many connections, each of which repeats the step for this long. Returns the time of every request.
pub async fn run(host: &str, connections: usize, span: Duration, step: impl Step) -> Spans {
    let start = Instant::now();
    let tasks: Vec<_> = (0..connections)
        .map(|connection| {
            let (host, step) = (host.to_owned(), step.clone());
            tokio::spawn(async move {
                let steps = async |client: &mut Client| {
                    while start.elapsed() < span && step.step(client, connection).await {}
                };
                with_client(&host, steps).await.1
            })
        })
        .collect();
    let mut took = Vec::new();
    for task in tasks {
        took.append(&mut task.await.expect("no panic"));
    }
    let all = start.elapsed();
    if all < span * 9 / 10 {
        println!("  (no work was left after {all:.1?}; the rate is computed over that time)");
    }
    Spans::new(took, all)
}
