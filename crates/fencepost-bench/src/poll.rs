//! Polls over HTTP: with and without something to claim, and many agents that all wait in a poll.

use crate::{
    load::{self, Client, Step, with_client},
    server_process::{Served, ServerProcess},
    table::{Spans, Targets},
};
use fencepost::sync::lock;
use serde::Deserialize;
use serde_json::json;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

const JOIN: &str = "/v1/agent/join";
const POLL: &str = "/v1/agent/poll";
const SETTLE: &str = "/v1/run/settle";
const AGENTS: [usize; 2] = [16, 64];
/// How many agents wait, and how many triggers a second come to them.
const PARKED: usize = 1000;
const RATE: u64 = 100;
/// Several, so that a slow one delays no other.
const SENDERS: u64 = 20;

/// When triggers are sent.
#[derive(Debug, Clone, Copy)]
enum Arrivals {
    /// Each at a random moment.
    Random,
    /// From all senders at once.
    Salvos,
}

impl Arrivals {
    /// The pause between two triggers of a sender.
    fn pause(self) -> Duration {
        let mean = Duration::from_millis(1000 * SENDERS / RATE);
        match self {
            Arrivals::Random => mean.mul_f64(-(1.0 - fastrand::f64()).ln()),
            Arrivals::Salvos => mean,
        }
    }
}

/// Polls and finds nothing.
#[derive(Clone)]
struct Empty;

impl Step for Empty {
    async fn step(&self, client: &mut Client, agent: usize) -> bool {
        client.done(POLL, json!({ "agent": name(agent), "run": format!("e{agent}") }).to_string()).await;
        true
    }
}

/// Polls for a task of the pool, and settles its run.
#[derive(Clone, Default)]
struct Takes(Arc<AtomicU64>);

impl Step for Takes {
    async fn step(&self, client: &mut Client, agent: usize) -> bool {
        let run = format!("t{agent}-{}", self.0.fetch_add(1, Ordering::Relaxed));
        let asked = json!({ "agent": name(agent), "run": run }).to_string();
        let polled: Polled = serde_json::from_slice(&client.done(POLL, asked).await).expect("JSON");
        if polled.trigger.is_some() {
            client.done(SETTLE, json!({ "run": run }).to_string()).await;
        }
        polled.trigger.is_some()
    }
}

/// The only fields of a poll's reply that are read.
#[derive(Deserialize)]
struct Polled {
    trigger: Option<Trigger>,
}

#[derive(Deserialize)]
struct Trigger {
    task: Option<Task>,
    #[serde(default)]
    messages: Vec<Message>,
}

#[derive(Deserialize)]
struct Task {
    title: String,
}

#[derive(Deserialize)]
struct Message {
    content: Content,
}

#[derive(Deserialize)]
struct Content {
    text: String,
}

fn name(agent: usize) -> String {
    format!("agent-{agent}")
}

/// `seed` puts this many tasks into the pool.
pub async fn measure(
    database: &str,
    what: &Served,
    span: Duration,
    tasks: i64,
    seed: impl AsyncFn(i64),
    targets: &mut Targets,
) {
    let served = ServerProcess::start(what);
    with_client(&served.host, async |client: &mut Client| {
        for agent in 0..PARKED {
            client.done(JOIN, json!({ "agent": name(agent) }).to_string()).await;
        }
    })
    .await;
    println!("\nHTTP, {database}, polls: requests a second, p50 and p99 in ms (nothing; poll and settle)");
    let takes = Takes::default();
    for agents in AGENTS {
        let empty = load::run(&served.host, agents, span, Empty).await;
        seed(tasks).await;
        let took = load::run(&served.host, agents, span, takes.clone()).await;
        seed(0).await;
        println!("  {agents:>3} agents   {}   {}", empty.row(), took.row());
        targets.push(format!("HTTP, {database}, empty polls a second, {agents} agents"), empty.rate(), "-");
        let polls = took.rate() / 2.0;
        targets.push(
            format!("HTTP, {database}, triggers polled and settled a second, {agents} agents"),
            polls,
            "-",
        );
    }
    for (arrivals, how, wanted) in
        [(Arrivals::Random, "at random", "below 50"), (Arrivals::Salvos, "twenty at once", "-")]
    {
        let woken = parked(&served.host, span.max(Duration::from_secs(2)) * 3, arrivals).await;
        println!(
            "  {PARKED} agents parked, {RATE} triggers a second, {how}: from sending one to having it {:.2} {:.2}",
            woken.percentile(50),
            woken.percentile(99)
        );
        let title = format!("HTTP, {database}, {PARKED} agents parked, {RATE} triggers/s, {how}, p99 in ms");
        targets.push(title, woken.percentile(99), wanted);
    }
}

/// Triggers that were sent and have not arrived.
type Sent = Arc<Mutex<HashMap<String, Instant>>>;

/// How soon a trigger reaches a waiting agent: of an inbox, an offer, an assignment, the pool.
async fn parked(host: &str, span: Duration, arrivals: Arrivals) -> Spans {
    let (sent, took): (Sent, Arc<Mutex<Vec<Duration>>>) = Default::default();
    let waiting: Vec<_> = (0..PARKED)
        .map(|agent| {
            let (host, sent, took) = (host.to_owned(), sent.clone(), took.clone());
            tokio::spawn(async move {
                let runs = format!("{arrivals:?}");
                with_client(&host, async |client: &mut Client| wait(client, agent, &runs, &sent, &took).await)
                    .await
            })
        })
        .collect();
    // By then all of them wait.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let start = Instant::now();
    let count = Arc::new(AtomicU64::new(0));
    let senders: Vec<_> = (0..SENDERS)
        .map(|_| {
            let (host, sent, count) = (host.to_owned(), sent.clone(), count.clone());
            tokio::spawn(async move {
                let send = async |client: &mut Client| {
                    let mut due = start + arrivals.pause();
                    while due < start + span {
                        tokio::time::sleep_until(due.into()).await;
                        // Counted from when it was due, even if the last one was slow.
                        send(client, count.fetch_add(1, Ordering::Relaxed), due, &sent).await;
                        due += arrivals.pause();
                    }
                };
                with_client(&host, send).await
            })
        })
        .collect();
    for sender in senders {
        sender.await.expect("no panic");
    }
    let (count, over) = (count.load(Ordering::Relaxed), start.elapsed());
    for _ in 0..100 {
        if lock(&sent).is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    let lost = lock(&sent).len();
    let rate = count as f64 / over.as_secs_f64();
    println!("  sent {count} ({rate:.0} a second), of which {lost} did not arrive within five seconds");
    let took = std::mem::take(&mut *lock(&took));
    Spans::new(took, start.elapsed())
}

/// Sends the nth trigger: each kind in turn, each to another agent.
async fn send(client: &mut Client, n: u64, due: Instant, sent: &Sent) {
    let (what, to) = (format!("n{n}"), name(n as usize * 7919 % PARKED));
    lock(sent).insert(what.clone(), due);
    let (path, body) = match n % 4 {
        0 => ("/v1/inbox/send", json!({ "agent": to, "text": what })),
        1 => ("/v1/task/add", json!({ "board": "parked", "title": what, "offer": to })),
        2 => ("/v1/task/add", json!({ "board": "parked", "title": what, "to": to })),
        _ => ("/v1/task/add", json!({ "board": "parked", "title": what })),
    };
    client.done(path, body.to_string()).await;
}

/// One agent: waits for a trigger, records when it came, settles it, and waits for the next.
async fn wait(client: &mut Client, agent: usize, runs: &str, sent: &Sent, took: &Mutex<Vec<Duration>>) {
    for n in 0_u64.. {
        let run = format!("{runs}{agent}-{n}");
        let asked = json!({ "agent": name(agent), "run": run, "wait_ms": 60_000 }).to_string();
        let polled: Polled = serde_json::from_slice(&client.done(POLL, asked).await).expect("JSON");
        let Some(trigger) = polled.trigger else { continue };
        let at = Instant::now();
        let texts = trigger.messages.into_iter().map(|message| message.content.text);
        for text in texts.chain(trigger.task.map(|task| task.title)) {
            let from = lock(sent).remove(&text);
            lock(took).extend(from.map(|from| at - from));
        }
        client.done(SETTLE, json!({ "run": run }).to_string()).await;
    }
}
