//! What Prometheus is told.

use crate::{App, log};
use fencepost::{
    Counts, Error, Result,
    board::{self, list::Board},
    claim, event, mail,
};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet, text::encode},
    metrics::{
        MetricType,
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use std::time::Duration;
use tokio::sync::Mutex;

/// Pages of the log that one look reads on, at most; the rest is counted at the next.
const PAGES: usize = 100;

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Done {
    op: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Of {
    op: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    noun: &'static str,
    reason: &'static str,
}

/// What a claim is on.
#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Noun {
    noun: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Kind {
    kind: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Depth {
    board: String,
    status: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct In {
    mailbox: String,
    status: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct On {
    board: String,
}

#[derive(Debug)]
pub struct Metrics {
    ops: Family<Done, Counter>,
    seconds: Family<Of, Histogram, fn() -> Histogram>,
    waited: Family<Of, Histogram, fn() -> Histogram>,
    refused: Family<Reason, Counter>,
    pub turned_away: Counter,
    /// The log, counted up to a position.
    events: Family<Kind, Counter>,
    expired: Family<Noun, Counter>,
    position: Mutex<Option<String>>,
}

impl Default for Metrics {
    fn default() -> Self {
        // 250 us to 8 s, and for what waits 10 ms to 11 min.
        let seconds: fn() -> Histogram = || Histogram::new(exponential_buckets(0.00025, 2.0, 16));
        let waited: fn() -> Histogram = || Histogram::new(exponential_buckets(0.01, 4.0, 9));
        Self {
            ops: Family::default(),
            seconds: Family::new_with_constructor(seconds),
            waited: Family::new_with_constructor(waited),
            refused: Family::default(),
            turned_away: Counter::default(),
            events: Family::default(),
            expired: Family::default(),
            position: Mutex::default(),
        }
    }
}

impl Metrics {
    /// An op has answered, after so long. What waited is counted apart: it says nothing about speed.
    pub fn answered(&self, op: &'static str, outcome: &'static str, took: Duration, waited: bool) {
        self.ops.get_or_create(&Done { op, outcome }).inc();
        if let (Some((noun, verb)), true) = (op.split_once('/'), outcome != "ok")
            && verb.starts_with("claim")
        {
            self.refused.get_or_create(&Reason { noun, reason: outcome }).inc();
        }
        let histogram = if waited { &self.waited } else { &self.seconds };
        histogram.get_or_create(&Of { op }).observe(took.as_secs_f64());
    }

    /// Everything there is to tell, in Prometheus' text format.
    pub async fn text(&self, app: &App) -> Result<String> {
        let mut registry = Registry::with_prefix("fence");
        self.of_this_server(&mut registry, app);
        self.of_the_fleet(&mut registry, app).await?;
        let mut text = String::new();
        encode(&mut text, &registry).map_err(Error::internal)?;
        Ok(text)
    }

    fn of_this_server(&self, registry: &mut Registry, app: &App) {
        registry.register("ops", "Calls of ops, by how they ended", self.ops.clone());
        registry.register("op_seconds", "How long calls took that did not wait", self.seconds.clone());
        registry.register("op_waited_seconds", "How long calls took that waited", self.waited.clone());
        registry.register("claims_refused", "Claims that were refused, by reason", self.refused.clone());
        let counts = app.fleet.stats();
        let counted = |n: u64| {
            let counter: Counter = Counter::default();
            counter.inc_by(n);
            counter
        };
        registry.register("batch_size", "SQLite: calls in one transaction of the writer", Batches(counts));
        registry.register("statements", "Statements run", counted(counts.statements));
        let waiters: Gauge = Gauge::default();
        waiters.set(app.waiting() as i64);
        let connections: Gauge = Gauge::default();
        connections.set(app.connected() as i64);
        registry.register("connections", "Clients that are connected", connections);
        let buffered: Gauge = Gauge::default();
        buffered.set(app.buffered() as i64);
        registry.register("body_bytes", "Bytes of large requests that are in memory", buffered);
        let unread: Gauge = Gauge::default();
        unread.set(app.replies.taken() as i64);
        registry.register("reply_bytes", "Bytes of large replies that are not read yet", unread);
        let refused = self.turned_away.clone();
        registry.register("connections_refused", "Connections beyond what is allowed", refused);
        registry.register("waiters", "Requests that wait, and followers of the log", waiters);
    }

    async fn of_the_fleet(&self, registry: &mut Registry, app: &App) -> Result<()> {
        self.read_on(app).await?;
        registry.register("events", "Events of the fleet since this server counts", self.events.clone());
        for noun in ["task", "lock", "message"] {
            // Also those of which none has.
            drop(self.expired.get_or_create(&Noun { noun }));
        }
        let expired = self.expired.clone();
        registry.register("claims_expired", "Claims whose holder was not heard from in time", expired);
        let depths = Family::<Depth, Gauge>::default();
        let ready = Family::<On, Gauge>::default();
        let live = Family::<Noun, Gauge>::default();
        let locks = locks(app).await?;
        live.get_or_create(&Noun { noun: "lock" }).set(locks);
        let held = live.get_or_create_owned(&Noun { noun: "task" });
        for Board { name, ready: n, tasks, .. } in app.fleet.call(board::List {}).await?.boards {
            ready.get_or_create(&On { board: name.clone() }).set(n);
            for (status, n) in tasks {
                if matches!(status.as_str(), "in_progress" | "reviewing") {
                    held.inc_by(n);
                }
                depths.get_or_create(&Depth { board: name.clone(), status }).set(n);
            }
        }
        registry.register("tasks", "Tasks, by board and status", depths);
        registry.register("tasks_ready", "Tasks that could be claimed now, by board", ready);
        let messages = Family::<In, Gauge>::default();
        let processing = live.get_or_create_owned(&Noun { noun: "message" });
        let some = mail::Stats { limit: Some(1000), ..mail::Stats::default() };
        for mailbox in app.fleet.call(some).await?.mailboxes {
            processing.inc_by(mailbox.processing);
            for (status, n) in [
                ("ready", mailbox.ready),
                ("waiting", mailbox.waiting),
                ("processing", mailbox.processing),
                ("held", mailbox.held),
                ("failed", mailbox.failed),
            ] {
                messages.get_or_create(&In { mailbox: mailbox.name.clone(), status }).set(n);
            }
        }
        registry.register("messages", "Messages, by mailbox (the first 1000) and status", messages);
        registry.register("claims_live", "What runs hold; of locks and mailboxes the first 1000", live);
        Ok(())
    }

    /// Counts what was logged since the last look. Looking only when asked costs nothing while nobody asks.
    async fn read_on(&self, app: &App) -> Result<()> {
        let mut position = self.position.lock().await;
        let Some(mut since) = position.take() else {
            *position = Some(log::end(&app.fleet).await?);
            return Ok(());
        };
        for _ in 0..PAGES {
            let list =
                event::List { since: Some(since.clone()), limit: Some(1000), ..event::List::default() };
            let page = match app.fleet.call(list).await {
                Ok(page) => page,
                // Pruned meanwhile, or the database does not answer: counted from where the log ends, next time.
                Err(_) => return Ok(()),
            };
            for event in page.events {
                if let Some(noun) = expired(&event) {
                    self.expired.get_or_create(&Noun { noun }).inc();
                }
                self.events.get_or_create(&Kind { kind: event.kind }).inc();
            }
            since = page.position;
            if !page.more {
                break;
            }
        }
        *position = Some(since);
        Ok(())
    }
}

/// On what a claim expired, if that is what happened. The event is named after what became of the item, so those that
/// somebody's own word can bring about are told apart by what else they say.
fn expired(event: &event::Entry) -> Option<&'static str> {
    // A failure that was told says at which attempt.
    let untold = || event.details.as_ref().is_none_or(|details| details.get("attempt").is_none());
    match event.kind.as_str() {
        "lock.lapsed" => Some("lock"),
        "task.lapsed" => Some("task"),
        "task.failed" if untold() => Some("task"),
        "message.lapsed" | "message.held" => Some("message"),
        "message.failed" if untold() => Some("message"),
        // Nobody can discard what is held.
        "message.discarded" if event.from.as_deref() == Some("processing") => Some("message"),
        _ => None,
    }
}

/// How many locks are held. (Of tasks the boards know it.)
async fn locks(app: &App) -> Result<i64> {
    let held = app.fleet.call(claim::List { run: None, limit: Some(1000) }).await?.claims;
    Ok(held.iter().filter(|claim| claim.resource.starts_with("lock/")).count() as i64)
}

/// The engine counts its batches by size itself.
#[derive(Debug)]
struct Batches(Counts);

impl EncodeMetric for Batches {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        let sizes = self.0.batch_sizes.iter().enumerate();
        let buckets: Vec<_> =
            sizes.map(|(power, n)| (f64::from(1 << power), *n)).chain([(f64::INFINITY, 0)]).collect();
        encoder.encode_histogram::<NoLabelSet>(self.0.batched as f64, self.0.batches, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}
