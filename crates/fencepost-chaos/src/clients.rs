//! Clients that retry under the same request id until there is an answer.

use crate::{oracle::Oracle, world::World};
use bytes::Bytes;
use fastrand::Rng;
use fencepost_client::Http;
use hyper::HeaderMap;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep};

pub const BOARD: &str = "work";
pub const BOXES: [&str; 2] = ["box/a", "box/b"];
/// Short, so that abandoned items come back during the run.
const TTL: i64 = 2_000;
const WAIT: i64 = 1_000;
/// How long one attempt may take beside its `wait_ms`. Shorter than a long freeze, so that clients try another server.
const ATTEMPT: Duration = Duration::from_secs(6);

/// Where a client sends its calls.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    /// This server first, and the others if it does not answer.
    Servers(usize),
    /// This server and no other.
    Only(usize),
    /// `fence call`, on the database itself.
    Commands,
}

/// An error that is an answer.
#[derive(Debug)]
pub struct Refusal {
    pub code: String,
    pub text: String,
}

#[derive(Debug)]
pub struct Client {
    pub name: String,
    pub target: Target,
    pub world: Arc<World>,
    pub oracle: Arc<Oracle>,
    pub rng: Rng,
    http: Http,
    requests: u64,
    lives: u64,
}

impl Client {
    pub fn new(name: &str, target: Target, world: &Arc<World>, oracle: &Arc<Oracle>, seed: u64) -> Self {
        let rng = Rng::with_seed(name.bytes().fold(seed, |seed, byte| seed.rotate_left(8) ^ u64::from(byte)));
        let http = Http::new(false, None).expect("plain HTTP needs nothing");
        Self {
            name: name.into(),
            target,
            world: world.clone(),
            oracle: oracle.clone(),
            rng,
            http,
            requests: 0,
            lives: 0,
        }
    }

    /// A new request id.
    pub fn request(&mut self) -> String {
        self.requests += 1;
        format!("{}-{}", self.name, self.requests)
    }

    /// The client's run: a new one after each time that it abandoned one.
    pub fn run(&self) -> String {
        format!("{}-run-{}", self.name, self.lives)
    }

    pub async fn call(&mut self, op: &str, request: &Value) -> Result<Value, Refusal> {
        let wait = Duration::from_millis(request["wait_ms"].as_u64().unwrap_or(0));
        for attempt in 0.. {
            let answer = match self.target {
                Target::Servers(home) => {
                    self.post((home + attempt) % self.world.servers.len(), op, request, wait + ATTEMPT).await
                }
                Target::Only(server) => self.post(server, op, request, wait + ATTEMPT).await,
                Target::Commands => self.world.call(op, request, wait + ATTEMPT).await,
            };
            match answer {
                Some(answer) if answer["error"].is_null() => return Ok(answer),
                Some(refused) => {
                    let field = |name: &str| refused["error"][name].as_str().unwrap_or("?").to_owned();
                    let (code, text) = (field("code"), field("message"));
                    if code != "unavailable" && code != "outcome_unknown" {
                        return Err(Refusal { code, text });
                    }
                }
                None => {}
            }
            self.oracle.count("asked again");
            sleep(Duration::from_millis(self.rng.u64(5..100))).await;
        }
        unreachable!("it retries for ever")
    }

    /// One attempt. `None` if no answer came.
    pub async fn post(&self, server: usize, op: &str, request: &Value, limit: Duration) -> Option<Value> {
        let to = format!("{}/v1/{op}", self.world.url(server)).parse().ok()?;
        let body = Bytes::from(request.to_string());
        let (_, body) = self.http.post(&to, &HeaderMap::new(), body, limit).await.ok()?;
        serde_json::from_slice(&body).ok()
    }

    /// Reports a refusal that no fault explains.
    fn unexpected(&self, op: &str, refusal: &Refusal) {
        self.oracle.violated(format!("{}: {op} was refused: {} {}", self.name, refusal.code, refusal.text));
    }

    async fn pause(&mut self, most_ms: u64) {
        sleep(Duration::from_millis(self.rng.u64(0..=most_ms))).await;
    }

    /// Works on a claim, and now and then abandons it or sleeps past its lease. Returns whether to complete it.
    async fn work_on(&mut self) -> bool {
        match self.rng.u32(0..40) {
            0 => {
                // It dies: nobody acts for its run any more.
                self.lives += 1;
                return false;
            }
            1 => {
                // It sleeps past its lease, and then completes an item that another may hold by now.
                self.lives += 1;
                sleep(Duration::from_millis(TTL as u64 + 500)).await;
            }
            _ => self.pause(30).await,
        }
        true
    }

    /// Adds tasks.
    pub async fn add(mut self, stop: Arc<AtomicBool>) {
        while !stop.load(Ordering::Relaxed) {
            let request = self.request();
            let add = json!({
                "board": BOARD, "title": request, "tags": [BOARD], "priority": self.rng.u32(0..=100),
                "max_attempts": 1000, "request": request,
            });
            match self.call("task/add", &add).await {
                Ok(added) => self.oracle.added(format!("task/{}", text(&added["task"]["id"])), request),
                Err(refusal) => self.unexpected("task/add", &refusal),
            }
            self.pause(120).await;
        }
    }

    /// Pushes messages with keys that other clients push, too, in another order.
    pub async fn push(mut self, stop: Arc<AtomicBool>) {
        let mut round = 0;
        while !stop.load(Ordering::Relaxed) {
            round += 1;
            let mut keys: Vec<_> = (0..6).map(|n| format!("{}-{n}", round / 2)).collect();
            self.rng.shuffle(&mut keys);
            let messages: Vec<_> = keys
                .iter()
                .enumerate()
                .map(|(n, key)| json!({ "mailbox": BOXES[n % 2], "key": key, "payload": key, "max_attempts": 1000 }))
                .collect();
            let push = json!({ "messages": messages, "request": self.request() });
            match self.call("mail/push_many", &push).await {
                Ok(pushed) => {
                    for message in pushed["messages"].as_array().into_iter().flatten() {
                        let key =
                            format!("{} {}", text(&message["mailbox"]), text(&message["idempotency_key"]));
                        self.oracle.added(format!("message/{}", message["id"]), key);
                    }
                }
                Err(refusal) => self.unexpected("mail/push_many", &refusal),
            }
            self.pause(600).await;
        }
    }

    /// Claims tasks and completes them.
    pub async fn work(mut self) {
        loop {
            let request = self.request();
            let claim = json!({
                "board": BOARD, "run": self.run(), "ttl_ms": TTL, "wait_ms": WAIT, "request": request,
            });
            let sent = Instant::now();
            match self.call("task/claim", &claim).await {
                Ok(claimed) => {
                    let token = text(&claimed["claim"]["token"]);
                    self.oracle.claimed(&request, &token, sent);
                    if self.work_on().await {
                        let done = json!({ "token": token, "output": request });
                        self.complete("task/done", &done, &token, &request).await;
                    }
                }
                Err(refusal) => self.claim_refused("task/claim", &refusal).await,
            }
        }
    }

    /// Claims messages and completes them.
    pub async fn read(mut self) {
        loop {
            let request = self.request();
            let claim = json!({
                "mailboxes": BOXES, "run": self.run(), "ttl_ms": TTL, "wait_ms": WAIT, "count": 2, "request": request,
            });
            let sent = Instant::now();
            match self.call("mail/claim", &claim).await {
                Ok(claimed) => {
                    let tokens: Vec<_> = claimed["claims"].as_array().into_iter().flatten().collect();
                    let tokens: Vec<_> = tokens.iter().map(|each| text(&each["claim"]["token"])).collect();
                    tokens.iter().for_each(|token| self.oracle.claimed(&request, token, sent));
                    for token in &tokens {
                        if !self.work_on().await {
                            break;
                        }
                        let done = json!({ "token": token, "outputs": [request] });
                        self.complete("mail/done", &done, token, "").await;
                    }
                }
                Err(refusal) => self.claim_refused("mail/claim", &refusal).await,
            }
        }
    }

    /// Claims and releases one lock in a loop.
    pub async fn lock(mut self, name: &str) {
        loop {
            let request = self.request();
            let claim = json!({
                "name": name, "run": self.run(), "ttl_ms": TTL, "wait_ms": WAIT, "request": request,
            });
            let sent = Instant::now();
            match self.call("lock/claim", &claim).await {
                Ok(claimed) => {
                    let token = text(&claimed["claim"]["token"]);
                    self.oracle.claimed(&request, &token, sent);
                    if self.work_on().await
                        && let Err(refusal) = self.call("claim/release", &json!({ "token": token })).await
                        && refusal.code != "lease_expired"
                    {
                        self.unexpected("claim/release", &refusal);
                    }
                    self.pause(50).await;
                }
                Err(refusal) => self.claim_refused("lock/claim", &refusal).await,
            }
        }
    }

    /// Polls for an agent and settles its triggers.
    pub async fn poll(mut self) {
        let join = json!({ "agent": self.name, "max_concurrent": 100 });
        if let Err(refusal) = self.call("agent/join", &join).await {
            self.unexpected("agent/join", &refusal);
        }
        loop {
            let run = self.request();
            let poll = json!({
                "agent": self.name, "run": run, "ttl_ms": TTL, "wait_ms": WAIT, "tag": BOARD,
                "accept": ["pool_task"],
            });
            let sent = Instant::now();
            match self.call("agent/poll", &poll).await {
                Ok(polled) => {
                    let claims = polled["trigger"]["claims"].as_array().cloned().unwrap_or_default();
                    for claim in &claims {
                        self.oracle.claimed(&run, &text(&claim["token"]), sent);
                    }
                    if !claims.is_empty() && self.work_on().await {
                        self.settle(&run).await;
                    }
                }
                Err(refusal) => self.claim_refused("agent/poll", &refusal).await,
            }
        }
    }

    async fn settle(&mut self, run: &str) {
        let sent = Instant::now();
        match self.call("run/settle", &json!({ "run": run, "output": run })).await {
            Ok(settled) => {
                for token in settled["settled"].as_array().into_iter().flatten() {
                    self.oracle.completed(&text(token), run, sent);
                }
            }
            Err(refusal) if refusal.code == "lease_expired" => self.oracle.count("refused: lease over"),
            Err(refusal) => self.unexpected("run/settle", &refusal),
        }
    }

    async fn complete(&mut self, op: &str, done: &Value, token: &str, output: &str) {
        let sent = Instant::now();
        match self.call(op, done).await {
            Ok(_) => self.oracle.completed(token, output, sent),
            Err(refusal) => match refusal.code.as_str() {
                "lease_expired" | "already_finished" => self.oracle.count("refused: lease over"),
                _ => self.unexpected(op, &refusal),
            },
        }
    }

    async fn claim_refused(&mut self, op: &str, refusal: &Refusal) {
        match refusal.code.as_str() {
            // A board is found only once it has a task.
            "none_ready" | "board_finished" | "already_claimed" | "lease_expired" | "not_found" => {
                self.pause(100).await;
            }
            _ => self.unexpected(op, refusal),
        }
    }

    /// A bystander: a claim that waits, and a task that becomes ready, both at a server that no fault hits. Records how
    /// long the claim took from then on, without outages.
    pub async fn probe(world: Arc<World>, oracle: Arc<Oracle>, seed: u64, stop: Arc<AtomicBool>) {
        let client = |name| Client::new(name, Target::Only(0), &world, &oracle, seed);
        let (mut waiter, mut adder) = (client("probe-waits"), client("probe-adds"));
        while !stop.load(Ordering::Relaxed) {
            let mut token = None;
            let mut ready = Instant::now();
            let claiming = async {
                while token.is_none() {
                    let request = waiter.request();
                    let claim = json!({
                        "board": "probe", "run": waiter.run(), "ttl_ms": 60_000, "wait_ms": 10_000, "request": request,
                    });
                    let sent = Instant::now();
                    match waiter.call("task/claim", &claim).await {
                        Ok(claimed) => {
                            let given = text(&claimed["claim"]["token"]);
                            oracle.claimed(&request, &given, sent);
                            token = Some(given);
                        }
                        Err(refusal) => waiter.claim_refused("task/claim", &refusal).await,
                    }
                }
            };
            let adding = async {
                adder.pause(200).await;
                let request = adder.request();
                let add =
                    json!({ "board": "probe", "title": request, "request": request, "max_attempts": 1000 });
                match adder.call("task/add", &add).await {
                    Ok(added) => oracle.added(format!("task/{}", text(&added["task"]["id"])), request),
                    Err(refusal) => adder.unexpected("task/add", &refusal),
                }
                ready = Instant::now();
            };
            tokio::join!(claiming, adding);
            oracle.waited(world.workable(ready));
            let token = token.unwrap_or_default();
            waiter
                .complete("task/done", &json!({ "token": token, "output": "probe" }), &token, "probe")
                .await;
        }
    }
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
