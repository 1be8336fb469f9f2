//! Clients that ask again, under the same request id, until there is an answer.

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
/// Short, so that what is abandoned comes back while the run still goes on.
const TTL: i64 = 2_000;
const WAIT: i64 = 1_000;
/// How long one try may take beside what it asked to wait: shorter than a long freeze, so that clients turn elsewhere.
const TRY: Duration = Duration::from_secs(6);

/// How a client reaches the fleet.
#[derive(Debug, Clone, Copy)]
pub enum Way {
    /// A server first, and the others if it does not answer.
    Servers(usize),
    /// This server and no other.
    Only(usize),
    /// `fence call`, on the database itself.
    Commands,
}

/// A no that is an answer.
#[derive(Debug)]
pub struct Refusal {
    pub code: String,
    pub text: String,
}

#[derive(Debug)]
pub struct Client {
    pub name: String,
    pub way: Way,
    pub world: Arc<World>,
    pub oracle: Arc<Oracle>,
    pub rng: Rng,
    http: Http,
    asked: u64,
    lives: u64,
}

impl Client {
    pub fn new(name: &str, way: Way, world: &Arc<World>, oracle: &Arc<Oracle>, seed: u64) -> Self {
        let rng = Rng::with_seed(name.bytes().fold(seed, |seed, byte| seed.rotate_left(8) ^ u64::from(byte)));
        let http = Http::new(false, None).expect("plain HTTP needs nothing");
        Self {
            name: name.into(),
            way,
            world: world.clone(),
            oracle: oracle.clone(),
            rng,
            http,
            asked: 0,
            lives: 0,
        }
    }

    /// A request id that nobody used before.
    pub fn request(&mut self) -> String {
        self.asked += 1;
        format!("{}-{}", self.name, self.asked)
    }

    /// The run that this client acts for: another one after each time it walked away.
    pub fn run(&self) -> String {
        format!("{}-run-{}", self.name, self.lives)
    }

    pub async fn ask(&mut self, op: &str, request: &Value) -> Result<Value, Refusal> {
        let wait = Duration::from_millis(request["wait_ms"].as_u64().unwrap_or(0));
        for tries in 0.. {
            let answer = match self.way {
                Way::Servers(home) => {
                    self.post((home + tries) % self.world.servers.len(), op, request, wait + TRY).await
                }
                Way::Only(server) => self.post(server, op, request, wait + TRY).await,
                Way::Commands => self.world.call(op, request, wait + TRY).await,
            };
            match answer {
                Some(answer) if answer["error"].is_null() => return Ok(answer),
                Some(refused) => {
                    let said = |field: &str| refused["error"][field].as_str().unwrap_or("?").to_owned();
                    let (code, text) = (said("code"), said("message"));
                    if code != "unavailable" && code != "outcome_unknown" {
                        return Err(Refusal { code, text });
                    }
                }
                None => {}
            }
            self.oracle.count("asked again");
            sleep(Duration::from_millis(self.rng.u64(5..100))).await;
        }
        unreachable!("it asks for ever")
    }

    /// One try. Nothing, if no answer came.
    pub async fn post(&self, server: usize, op: &str, request: &Value, limit: Duration) -> Option<Value> {
        let to = format!("{}/v1/{op}", self.world.url(server)).parse().ok()?;
        let body = Bytes::from(request.to_string());
        let (_, body) = self.http.post(&to, &HeaderMap::new(), body, limit).await.ok()?;
        serde_json::from_slice(&body).ok()
    }

    /// An answer that no fault explains.
    fn unexpected(&self, op: &str, refusal: &Refusal) {
        self.oracle.violated(format!("{}: {op} was refused: {} {}", self.name, refusal.code, refusal.text));
    }

    async fn pause(&mut self, most_ms: u64) {
        sleep(Duration::from_millis(self.rng.u64(0..=most_ms))).await;
    }

    /// Between claim and completion: work, and now and then what a holder should not do. Says whether it goes on.
    async fn works(&mut self) -> bool {
        match self.rng.u32(0..40) {
            0 => {
                // It died. Nobody acts for its run any more.
                self.lives += 1;
                return false;
            }
            1 => {
                // It slept past the end of its lease, and then completes what may be another's by now.
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
            match self.ask("task/add", &add).await {
                Ok(added) => self.oracle.added(format!("task/{}", text(&added["task"]["id"])), request),
                Err(refusal) => self.unexpected("task/add", &refusal),
            }
            self.pause(120).await;
        }
    }

    /// Pushes messages whose keys others push, too, in another order.
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
            match self.ask("mail/push_many", &push).await {
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
            let asked = Instant::now();
            match self.ask("task/claim", &claim).await {
                Ok(claimed) => {
                    let token = text(&claimed["claim"]["token"]);
                    self.oracle.claimed(&request, &token, asked);
                    if self.works().await {
                        let done = json!({ "token": token, "output": request });
                        self.complete("task/done", &done, &token, &request).await;
                    }
                }
                Err(refusal) => self.came_away("task/claim", &refusal).await,
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
            let asked = Instant::now();
            match self.ask("mail/claim", &claim).await {
                Ok(claimed) => {
                    let tokens: Vec<_> = claimed["claims"].as_array().into_iter().flatten().collect();
                    let tokens: Vec<_> = tokens.iter().map(|each| text(&each["claim"]["token"])).collect();
                    tokens.iter().for_each(|token| self.oracle.claimed(&request, token, asked));
                    for token in &tokens {
                        if !self.works().await {
                            break;
                        }
                        let done = json!({ "token": token, "outputs": [request] });
                        self.complete("mail/done", &done, token, "").await;
                    }
                }
                Err(refusal) => self.came_away("mail/claim", &refusal).await,
            }
        }
    }

    /// Takes one lock, again and again.
    pub async fn lock(mut self, name: &str) {
        loop {
            let request = self.request();
            let claim = json!({
                "name": name, "run": self.run(), "ttl_ms": TTL, "wait_ms": WAIT, "request": request,
            });
            let asked = Instant::now();
            match self.ask("lock/claim", &claim).await {
                Ok(claimed) => {
                    let token = text(&claimed["claim"]["token"]);
                    self.oracle.claimed(&request, &token, asked);
                    if self.works().await
                        && let Err(refusal) = self.ask("claim/release", &json!({ "token": token })).await
                        && refusal.code != "lease_expired"
                    {
                        self.unexpected("claim/release", &refusal);
                    }
                    self.pause(50).await;
                }
                Err(refusal) => self.came_away("lock/claim", &refusal).await,
            }
        }
    }

    /// Takes tasks by polling for an agent, and settles them.
    pub async fn poll(mut self) {
        let join = json!({ "agent": self.name, "max_concurrent": 100 });
        if let Err(refusal) = self.ask("agent/join", &join).await {
            self.unexpected("agent/join", &refusal);
        }
        loop {
            let run = self.request();
            let poll = json!({
                "agent": self.name, "run": run, "ttl_ms": TTL, "wait_ms": WAIT, "tag": BOARD,
                "accept": ["pool_task"],
            });
            let asked = Instant::now();
            match self.ask("agent/poll", &poll).await {
                Ok(polled) => {
                    let claims = polled["trigger"]["claims"].as_array().cloned().unwrap_or_default();
                    for claim in &claims {
                        self.oracle.claimed(&run, &text(&claim["token"]), asked);
                    }
                    if !claims.is_empty() && self.works().await {
                        self.settle(&run).await;
                    }
                }
                Err(refusal) => self.came_away("agent/poll", &refusal).await,
            }
        }
    }

    async fn settle(&mut self, run: &str) {
        let asked = Instant::now();
        match self.ask("run/settle", &json!({ "run": run, "output": run })).await {
            Ok(settled) => {
                for token in settled["settled"].as_array().into_iter().flatten() {
                    self.oracle.completed(&text(token), run, asked);
                }
            }
            Err(refusal) if refusal.code == "lease_expired" => self.oracle.count("refused: lease over"),
            Err(refusal) => self.unexpected("run/settle", &refusal),
        }
    }

    async fn complete(&mut self, op: &str, done: &Value, token: &str, output: &str) {
        let asked = Instant::now();
        match self.ask(op, done).await {
            Ok(_) => self.oracle.completed(token, output, asked),
            Err(refusal) => match refusal.code.as_str() {
                "lease_expired" | "already_finished" => self.oracle.count("refused: lease over"),
                _ => self.unexpected(op, &refusal),
            },
        }
    }

    async fn came_away(&mut self, op: &str, refusal: &Refusal) {
        match refusal.code.as_str() {
            // A board that is not found has no task yet.
            "none_ready" | "board_finished" | "already_claimed" | "lease_expired" | "not_found" => {
                self.pause(100).await;
            }
            _ => self.unexpected(op, refusal),
        }
    }

    /// A bystander: a claim that waits, and a task that becomes ready. Both at a server that no fault hits. Tells the
    /// longest that the claim took from then on, without the time in which nobody could work.
    pub async fn probe(world: Arc<World>, oracle: Arc<Oracle>, seed: u64, stop: Arc<AtomicBool>) {
        let client = |name| Client::new(name, Way::Only(0), &world, &oracle, seed);
        let (mut waits, mut adds) = (client("probe-waits"), client("probe-adds"));
        while !stop.load(Ordering::Relaxed) {
            let mut token = None;
            let mut ready = Instant::now();
            let claiming = async {
                while token.is_none() {
                    let request = waits.request();
                    let claim = json!({
                        "board": "probe", "run": waits.run(), "ttl_ms": 60_000, "wait_ms": 10_000, "request": request,
                    });
                    let asked = Instant::now();
                    match waits.ask("task/claim", &claim).await {
                        Ok(claimed) => {
                            let given = text(&claimed["claim"]["token"]);
                            oracle.claimed(&request, &given, asked);
                            token = Some(given);
                        }
                        Err(refusal) => waits.came_away("task/claim", &refusal).await,
                    }
                }
            };
            let adding = async {
                adds.pause(200).await;
                let request = adds.request();
                let add =
                    json!({ "board": "probe", "title": request, "request": request, "max_attempts": 1000 });
                match adds.ask("task/add", &add).await {
                    Ok(added) => oracle.added(format!("task/{}", text(&added["task"]["id"])), request),
                    Err(refusal) => adds.unexpected("task/add", &refusal),
                }
                ready = Instant::now();
            };
            tokio::join!(claiming, adding);
            oracle.waited(world.workable(ready));
            let token = token.unwrap_or_default();
            waits.complete("task/done", &json!({ "token": token, "output": "probe" }), &token, "probe").await;
        }
    }
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
