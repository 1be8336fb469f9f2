//! Calls over HTTP, beside a bare axum echo that gets the same requests.

use crate::{
    load::{self, Client, Step},
    seed,
    server_process::{Served, ServerProcess},
    table::{Targets, median},
};
use fencepost::Durability;
use std::{path::Path, time::Duration};

const CONNECTIONS: [usize; 3] = [16, 64, 256];
const ADD: &str = "/v1/task/add";
const CLAIM: &str = "/v1/task/claim";
const DONE: &str = "/v1/task/done";

fn add() -> String {
    r#"{"board":"added","title":"a task"}"#.into()
}

fn claim(connection: usize) -> String {
    format!(r#"{{"board":"work","run":"bench-{connection}","ttl_ms":1800000}}"#)
}

fn done(token: &str) -> String {
    format!(r#"{{"token":"{token}"}}"#)
}

/// Adds one task.
#[derive(Clone)]
struct Adds;

impl Step for Adds {
    async fn step(&self, client: &mut Client, _: usize) -> bool {
        client.done(ADD, add()).await;
        true
    }
}

/// Claims a task and completes it.
#[derive(Clone)]
struct Cycles;

impl Step for Cycles {
    async fn step(&self, client: &mut Client, connection: usize) -> bool {
        let answer = client.post(CLAIM, claim(connection)).await;
        let Ok(claimed) = serde_json::from_slice::<Claimed>(&answer.body) else { return false };
        client.done(DONE, done(&claimed.claim.token)).await;
        true
    }
}

/// The only fields of a claim's reply that are read, so that clients cost little.
#[derive(serde::Deserialize)]
struct Claimed {
    claim: Claim,
}
#[derive(serde::Deserialize)]
struct Claim {
    token: String,
}

/// As many requests of the same size, which the echo sends back.
#[derive(Clone)]
struct Echoes;

impl Step for Echoes {
    async fn step(&self, client: &mut Client, connection: usize) -> bool {
        client.done(CLAIM, claim(connection)).await;
        client.done(DONE, done("task/work-12345@1")).await;
        true
    }
}

/// Compares fleets with the echo.
pub struct Comparison {
    echo: ServerProcess,
    span: Duration,
}

impl Comparison {
    pub async fn echo(span: Duration) -> Self {
        let echo = ServerProcess::start(&Served::Echo);
        title("a bare axum echo");
        for connections in CONNECTIONS {
            let echoed = load::run(&echo.host, connections, span, Echoes).await;
            println!("  {connections:>3} connections   {}", echoed.row());
        }
        Self { echo, span }
    }

    pub async fn sqlite(&self, dir: &Path, tasks: i64, targets: &mut Targets) {
        for (durability, name) in [(Durability::Normal, "NORMAL"), (Durability::Full, "FULL")] {
            let path = dir.join(format!("http-{name}.db"));
            let served = ServerProcess::start(&Served::Fleet(path.display().to_string(), durability));
            title(&format!("SQLite, synchronous={name}"));
            for connections in CONNECTIONS {
                seed::sqlite(&path, "work", tasks);
                self.figures(&served, connections).await;
                seed::clear_sqlite(&path);
            }
            let refill = async || {
                seed::clear_sqlite(&path);
                seed::sqlite(&path, "work", tasks);
            };
            let ratio = self.in_turns(&served, refill).await;
            let wanted = if durability == Durability::Normal { "at least 0.35" } else { "-" };
            targets.push(format!("HTTP, SQLite {name}, claim+done, 64 connections / echo"), ratio, wanted);
        }
    }

    pub async fn postgres(&self, url: &str, raw: &seed::Postgres, tasks: i64) {
        let served = ServerProcess::start(&Served::Fleet(url.into(), Durability::Full));
        title("PostgreSQL, synchronous_commit=on");
        for connections in CONNECTIONS {
            raw.clear().await;
            raw.seed("work", tasks).await;
            self.figures(&served, connections).await;
        }
        raw.clear().await;
    }

    async fn figures(&self, served: &ServerProcess, connections: usize) {
        let adds = load::run(&served.host, connections, self.span, Adds).await;
        let cycles = load::run(&served.host, connections, self.span, Cycles).await;
        println!("  {connections:>3} connections   {}   {}", adds.row(), cycles.row());
    }

    /// Other load on the machine slows both, so the two take turns; the median of five runs of each counts.
    async fn in_turns(&self, served: &ServerProcess, fill: impl AsyncFn()) -> f64 {
        let (mut fleet, mut echo) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            fill().await;
            fleet.push(load::run(&served.host, 64, self.span / 2, Cycles).await.rate());
            echo.push(load::run(&self.echo.host, 64, self.span / 2, Echoes).await.rate());
        }
        println!("  in turns, 64 connections: claim+done {fleet:.0?}, echo {echo:.0?}");
        median(fleet) / median(echo)
    }
}

/// Only claims and completions, for a profiler.
pub async fn profile(path: &Path, span: Duration) {
    let served = ServerProcess::start(&Served::Fleet(path.display().to_string(), Durability::Normal));
    println!("{}", load::run(&served.host, 64, span, Cycles).await.row());
}

fn title(what: &str) {
    println!("\nHTTP, {what}: requests a second, p50 and p99 in ms (add, then claim and done)");
}
