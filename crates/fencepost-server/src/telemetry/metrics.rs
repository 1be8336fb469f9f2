//! Metrics for Prometheus: counters of this server, and numbers of the fleet that are read on each scrape.

use fencepost::{
    Counts, Error, Fleet, Result,
    board::{self, list::Board},
    claim, event, mail, storm,
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

/// Pages of the log that one scrape reads, at most. The next scrape counts the rest.
const PAGES: usize = 100;

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OpOutcome {
    op: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OpLabel {
    op: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RefusedClaim {
    noun: &'static str,
    reason: &'static str,
}

/// The noun of a claimed resource.
#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct NounLabel {
    noun: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EventKind {
    kind: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TaskStatus {
    board: String,
    status: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MessageStatus {
    mailbox: String,
    status: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BoardLabel {
    board: String,
}

/// The limit that suppressed a wake-up.
#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Suppressed {
    reason: &'static str,
}

#[derive(Debug)]
pub struct Metrics {
    ops: Family<OpOutcome, Counter>,
    seconds: Family<OpLabel, Histogram, fn() -> Histogram>,
    waited: Family<OpLabel, Histogram, fn() -> Histogram>,
    refused: Family<RefusedClaim, Counter>,
    pub refused_connections: Counter,
    /// Counts of the log's events, up to `position`.
    events: Family<EventKind, Counter>,
    expired: Family<NounLabel, Counter>,
    position: Mutex<Option<String>>,
}

/// The connections, waiters and memory in use.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    pub connections: usize,
    pub waiters: usize,
    /// Bytes of request bodies in memory.
    pub body_bytes: usize,
    /// Bytes of replies in memory.
    pub reply_bytes: usize,
}

impl Default for Metrics {
    fn default() -> Self {
        // 250 us to 8 s, and for calls that wait 10 ms to 11 min.
        let seconds: fn() -> Histogram = || Histogram::new(exponential_buckets(0.00025, 2.0, 16));
        let waited: fn() -> Histogram = || Histogram::new(exponential_buckets(0.01, 4.0, 9));
        Self {
            ops: Family::default(),
            seconds: Family::new_with_constructor(seconds),
            waited: Family::new_with_constructor(waited),
            refused: Family::default(),
            refused_connections: Counter::default(),
            events: Family::default(),
            expired: Family::default(),
            position: Mutex::default(),
        }
    }
}

impl Metrics {
    /// Counts a call. Calls that waited have a histogram of their own, because their time says nothing about speed.
    pub fn record(&self, op: &'static str, outcome: &'static str, took: Duration, waited: bool) {
        self.ops.get_or_create(&OpOutcome { op, outcome }).inc();
        if let (Some((noun, verb)), true) = (op.split_once('/'), outcome != "ok")
            && verb.starts_with("claim")
        {
            self.refused.get_or_create(&RefusedClaim { noun, reason: outcome }).inc();
        }
        let histogram = if waited { &self.waited } else { &self.seconds };
        histogram.get_or_create(&OpLabel { op }).observe(took.as_secs_f64());
    }

    /// All metrics in Prometheus' text format.
    pub async fn text(&self, fleet: &Fleet, usage: Usage) -> Result<String> {
        let mut registry = Registry::with_prefix("fence");
        self.register_server(&mut registry, fleet.stats(), usage);
        self.register_fleet(&mut registry, fleet).await?;
        register_storm(&mut registry, fleet).await?;
        let mut text = String::new();
        encode(&mut text, &registry).map_err(Error::internal)?;
        Ok(text)
    }

    fn register_server(&self, registry: &mut Registry, counts: Counts, usage: Usage) {
        registry.register("ops", "Calls of ops, by outcome", self.ops.clone());
        registry.register("op_seconds", "Duration of calls that did not wait", self.seconds.clone());
        registry.register("op_waited_seconds", "Duration of calls that waited", self.waited.clone());
        registry.register("claims_refused", "Refused claims, by reason", self.refused.clone());
        registry.register("batch_size", "SQLite: calls in one transaction of the writer", Batches(counts));
        registry.register("statements", "Statements run", counter(counts.statements));
        let gauge = |value: usize| gauge(value as i64);
        registry.register("connections", "Open connections of clients", gauge(usage.connections));
        registry.register("body_bytes", "Bytes of large requests in memory", gauge(usage.body_bytes));
        registry.register(
            "reply_bytes",
            "Bytes of large replies that clients have not read",
            gauge(usage.reply_bytes),
        );
        let refused = self.refused_connections.clone();
        registry.register("connections_refused", "Connections refused because a limit was reached", refused);
        registry.register("waiters", "Requests that wait, and followers of the log", gauge(usage.waiters));
    }

    async fn register_fleet(&self, registry: &mut Registry, fleet: &Fleet) -> Result<()> {
        self.count_new_events(fleet).await?;
        registry.register(
            "events",
            "Events of the fleet since this server began to count",
            self.events.clone(),
        );
        for noun in claim::claimable_nouns() {
            // A noun without an expired claim is shown as 0.
            drop(self.expired.get_or_create(&NounLabel { noun }));
        }
        registry.register("claims_expired", "Claims whose lease expired", self.expired.clone());
        let tasks = Family::<TaskStatus, Gauge>::default();
        let ready = Family::<BoardLabel, Gauge>::default();
        let live = Family::<NounLabel, Gauge>::default();
        let claims = fleet.call(claim::List { run: None, limit: Some(1000) }).await?.claims;
        for noun in claim::claimable_nouns() {
            let of_noun = |claim: &&claim::Claim| claim.resource.split('/').next() == Some(noun);
            live.get_or_create(&NounLabel { noun }).set(claims.iter().filter(of_noun).count() as i64);
        }
        // The lists of boards and of mailboxes count these without a limit.
        let held = live.get_or_create_owned(&NounLabel { noun: "task" });
        held.set(0);
        for Board { name, ready: n, tasks: by_status, .. } in fleet.call(board::List {}).await?.boards {
            ready.get_or_create(&BoardLabel { board: name.clone() }).set(n);
            for (status, n) in by_status {
                if matches!(status.as_str(), "in_progress" | "reviewing") {
                    held.inc_by(n);
                }
                tasks.get_or_create(&TaskStatus { board: name.clone(), status }).set(n);
            }
        }
        registry.register("tasks", "Tasks, by board and status", tasks);
        registry.register("tasks_ready", "Tasks that can be claimed now, by board", ready);
        let messages = Family::<MessageStatus, Gauge>::default();
        let processing = live.get_or_create_owned(&NounLabel { noun: "message" });
        processing.set(0);
        let first = mail::Stats { limit: Some(1000), ..mail::Stats::default() };
        for mailbox in fleet.call(first).await?.mailboxes {
            processing.inc_by(mailbox.processing);
            for (status, n) in [
                ("ready", mailbox.ready),
                ("waiting", mailbox.waiting),
                ("processing", mailbox.processing),
                ("held", mailbox.held),
                ("failed", mailbox.failed),
            ] {
                messages.get_or_create(&MessageStatus { mailbox: mailbox.name.clone(), status }).set(n);
            }
        }
        registry.register("messages", "Messages, by mailbox (the first 1000) and status", messages);
        registry.register(
            "claims_live",
            "Live claims, by noun; of locks, mentions and mailboxes the first 1000",
            live,
        );
        Ok(())
    }

    /// Counts the events since the last scrape. Reading them only on a scrape costs nothing while nobody scrapes.
    async fn count_new_events(&self, fleet: &Fleet) -> Result<()> {
        let mut position = self.position.lock().await;
        let Some(mut since) = position.take() else {
            *position = Some(log_end(fleet).await?);
            return Ok(());
        };
        for _ in 0..PAGES {
            let list =
                event::List { since: Some(since.clone()), limit: Some(1000), ..event::List::default() };
            let page = match fleet.call(list).await {
                Ok(page) => page,
                // Pruned meanwhile, or the database does not answer: the next scrape starts at the end of the log.
                Err(_) => return Ok(()),
            };
            for event in page.events {
                if let Some(noun) = claim::expired_noun(&event) {
                    self.expired.get_or_create(&NounLabel { noun }).inc();
                }
                self.events.get_or_create(&EventKind { kind: event.kind }).inc();
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

/// The stored numbers of the scheduler of wake-ups: every server of the fleet has the same.
async fn register_storm(registry: &mut Registry, fleet: &Fleet) -> Result<()> {
    let shown = fleet.call(storm::Show { limit: Some(1) }).await?;
    let count = |name: &str| u64::try_from(shown.counts.get(name).copied().unwrap_or_default()).unwrap_or(0);
    let suppressed = Family::<Suppressed, Counter>::default();
    for (reason, name) in
        [("budget", "suppressed_budget"), ("breaker", "suppressed_breaker"), ("cause", "suppressed_cause")]
    {
        suppressed.get_or_create(&Suppressed { reason }).inc_by(count(name));
    }
    let is_ignored = shown.alarms.iter().any(|alarm| alarm.alarm == "ignored_work");
    registry.register(
        "storm_pending_jobs",
        "Pending and running wake-ups of agents that are online",
        gauge(shown.pending_jobs),
    );
    registry.register("storm_scheduled", "Wake-ups that were scheduled", counter(count("scheduled")));
    registry.register("storm_suppressed", "Wake-ups that a limit suppressed", suppressed);
    registry.register(
        "storm_reclaimed",
        "Wake-ups that were handed out again because their worker was lost",
        counter(count("reclaimed")),
    );
    registry.register(
        "storm_breaker_open",
        "1 while the breaker is open, and no new wake-ups are scheduled",
        gauge(i64::from(shown.breaker.open)),
    );
    registry.register(
        "alarm",
        "1 while work is ready and agents are online, but nothing was picked up for five minutes",
        gauge(i64::from(is_ignored)),
    );
    Ok(())
}

fn gauge(value: i64) -> Gauge {
    let gauge = Gauge::default();
    gauge.set(value);
    gauge
}

fn counter(value: u64) -> Counter {
    let counter = Counter::default();
    counter.inc_by(value);
    counter
}

/// The position of the newest event that can be read.
pub async fn log_end(fleet: &Fleet) -> Result<String> {
    Ok(fleet.call(event::List { last: Some(1), ..event::List::default() }).await?.position)
}

/// The engine's own histogram of batch sizes.
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
