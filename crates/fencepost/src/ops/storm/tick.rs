use super::{
    alarm, breaker,
    facts::{Facts, Reader, Roots, backlog, nested_loops, readers},
    marks,
    rule::{Breaker, Decision, Waker, Why, decide},
    settings::{Setting, Settings},
    state, wakeups,
};
use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::{Batch, Stmt, Tx, set},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    log::Event,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// Limit of one tick on the pairs to decide on.
const PAIRS: i64 = 256;
/// While a person keeps the breaker open, a pair is looked at again after this time.
const BREAKER_AGAIN: Millis = Millis::minutes(1);

/// Schedule wake-ups for unread posts. For each agent in a channel with unread posts, and with nothing pending or running for it
/// there, one message is queued in the mailbox `wakeups/AGENT`, unless a limit suppresses it. A server does this regularly; without
/// a server, call it yourself. One call looks at a bounded number of agents and channels.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tick {}

/// The result of one tick.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ticked {
    /// Another process schedules at this moment, so this call did nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// Wake-ups that were scheduled now.
    pub scheduled: i64,
    /// Pending and running wake-ups of agents that are online.
    pub pending_jobs: i64,
    /// Wake-ups that a budget or the shortest interval suppressed now.
    pub suppressed_budget: i64,
    /// Wake-ups that only the breaker suppressed now.
    pub suppressed_breaker: i64,
    /// Wake-ups that the limits on causes suppressed now.
    pub suppressed_cause: i64,
    pub breaker_open: bool,
    /// This call opened the breaker.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub breaker_opened: bool,
    /// Alarms that began with this call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alarms: Vec<String>,
    /// Wake-ups whose worker was lost and that were handed out again, since the fleet was created.
    pub reclaimed: i64,
    /// There is more to look at: repeat the call.
    pub more: bool,
}

impl Ticked {
    /// The sum of this tick and the next one. Numbers that are no sums are those of the next.
    #[must_use]
    pub fn and(self, next: Ticked) -> Ticked {
        Ticked {
            scheduled: self.scheduled + next.scheduled,
            suppressed_budget: self.suppressed_budget + next.suppressed_budget,
            suppressed_breaker: self.suppressed_breaker + next.suppressed_breaker,
            suppressed_cause: self.suppressed_cause + next.suppressed_cause,
            breaker_opened: self.breaker_opened || next.breaker_opened,
            alarms: [self.alarms, next.alarms].concat(),
            ..next
        }
    }
}

impl Op for Tick {
    const NAME: &'static str = "storm/tick";
    const ACCESS: Access = Access::Admin;
    // Never: a repeat would also look at what became due meanwhile.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = "{}";
    type Reply = Ticked;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Ticked> {
        let mut batch = Batch::new();
        // Nothing below waits for a row lock but the counters at the end, and those are held for a moment only.
        batch.add(Stmt::read("select set_config('lock_timeout', '1s', true)", params![]).only_on_postgres());
        batch.add(nested_loops());
        let locked = batch.add(Stmt::read(
            "select opened_at, open_until, alarm, alarm_at from storm /*pg for update skip locked*/",
            params![],
        ));
        let settings = batch.add(Settings::stmt());
        let backlog = batch.add(backlog(tx.now));
        let counters = batch.add(state::counters());
        let mut answers = tx.send(batch).await?;
        let locked = answers.take(locked).rows;
        if locked.is_empty() {
            return Ok(Ticked { elsewhere: true, ..Ticked::default() });
        }
        let (open, alarm) = state::read(&locked)?;
        let mut tick = Scheduler {
            settings: Settings::read(&answers.take(settings).rows)?,
            breaker: open,
            backlog: answers.take(backlog).rows[0].get("n")?,
            counts: BTreeMap::new(),
            alarms: Vec::new(),
        };
        let counters = state::read_counters(&answers.take(counters).rows)?;
        let more =
            [marks::rearm(tx).await?, marks::mark(tx).await?, tick.schedule(tx, open).await?].contains(&true);
        tick.alarms.extend(alarm::update(tx, alarm).await?);
        tx.send(state::count(&tick.counts).collect()).await?;
        let now = |name: &str| tick.counts.get(name).copied().unwrap_or_default();
        Ok(Ticked {
            elsewhere: false,
            scheduled: now("scheduled"),
            pending_jobs: tick.backlog,
            suppressed_budget: now("suppressed_budget"),
            suppressed_breaker: now("suppressed_breaker"),
            suppressed_cause: now("suppressed_cause"),
            breaker_open: tick.breaker.is_open(),
            breaker_opened: tick.breaker.is_open() && !open.is_open(),
            alarms: tick.alarms,
            reclaimed: counters.get("reclaimed").copied().unwrap_or_default(),
            more,
        })
    }
}

/// One tick.
struct Scheduler {
    settings: Settings,
    breaker: Breaker,
    backlog: i64,
    counts: BTreeMap<&'static str, i64>,
    alarms: Vec<String>,
}

impl Scheduler {
    /// Decides on the pairs that are due. Returns whether there are more.
    async fn schedule(&mut self, tx: &mut Tx<'_>, stored: Breaker) -> Result<bool> {
        self.apply_breaker(tx.now);
        let rows = tx
            .query(
                readers!(
                    "where reader.wake_at <= ?1 order by reader.wake_at, reader.agent, reader.channel limit ?2
                     /*pg for update of reader skip locked*/"
                ),
                params![tx.now, PAIRS],
            )
            .await?;
        let due = Reader::read_all(&rows)?;
        let mut facts = Facts::load(tx, &due, &self.settings, Roots::Locked).await?;
        let (mut woken, mut looked) = (Vec::new(), Vec::new());
        for reader in &due {
            let (mut why, mut until) = (None, None);
            match self.decide(reader, &facts, tx.now) {
                Decision::Nothing => {}
                Decision::Suppress { why: reason, until: again } => (why, until) = (Some(reason), again),
                Decision::Wake(waker) => {
                    facts.fanouts.entry(waker.root.clone()).or_default().count += 1;
                    woken.push((reader, waker));
                    self.backlog += 1;
                    self.apply_breaker(tx.now);
                }
            }
            looked.push((reader, why, until));
        }
        for (_, why, _) in &looked {
            if let Some(counter) = why.and_then(Why::counter) {
                *self.counts.entry(counter).or_default() += 1;
            }
        }
        if self.breaker != stored {
            let event = breaker::event(stored, self.breaker).insert(tx);
            tx.send(Batch::from([breaker::save(self.breaker), event])).await?;
        }
        *self.counts.entry("scheduled").or_default() += woken.len() as i64;
        wakeups::schedule(tx, &woken).await?;
        self.record(tx, &looked, &facts).await?;
        Ok(due.len() as i64 == PAIRS)
    }

    /// Applied again after each wake-up, so that one tick does not exceed the threshold.
    fn apply_breaker(&mut self, now: Time) {
        let threshold = self.settings.get(Setting::BreakerBacklogThreshold);
        let cooldown = Millis(self.settings.get(Setting::BreakerCooldownMs));
        self.breaker = self.breaker.after(self.backlog, threshold, cooldown, now);
    }

    fn decide(&self, reader: &Reader, facts: &Facts, now: Time) -> Decision {
        let limits = self.settings.limits(&reader.channel);
        let Some(pair) = facts.pairs.get(&reader.pair()) else { return Decision::Nothing };
        match decide(pair, &limits, |root| facts.fanout(root), now) {
            Decision::Wake(_) if self.breaker.is_open() => {
                let until = self.breaker.open_until.unwrap_or_else(|| now.plus(BREAKER_AGAIN));
                Decision::Suppress { why: Why::Breaker, until: Some(until) }
            }
            decision => decision,
        }
    }

    /// Writes the results of the looks.
    async fn record(
        &mut self,
        tx: &mut Tx<'_>,
        looked: &[(&Reader, Option<Why>, Option<Time>)],
        facts: &Facts,
    ) -> Result<()> {
        if looked.is_empty() {
            return Ok(());
        }
        let busy = marks::park(tx, looked).await?;
        let rows = looked.iter().map(|(reader, why, until)| {
            let until = if busy.contains(&reader.agent) { Some(tx.now.plus(marks::PARK_AGAIN)) } else { *until };
            let counts = why.is_some_and(|why| why.counter().is_some());
            json!({
                "agent": reader.agent, "channel": reader.channel, "at": until.map(|at| at.0),
                "why": why.map(Why::as_str), "suppressed": if why.is_none() { 0 } else { reader.suppressed + i64::from(counts) },
            })
        });
        let mut batch = Batch::new();
        batch.add(Stmt::write(
            "update reader set wake_at = cast(item.value ->> 'at' as bigint), wake_why = item.value ->> 'why',
               suppressed = cast(item.value ->> 'suppressed' as bigint)
             from json_each(?1) as item
             where reader.agent = item.value ->> 'agent' and reader.channel = item.value ->> 'channel'",
            params![set(rows)?],
        ));
        let events: Vec<Event> = looked
            .iter()
            .filter(|(reader, why, _)| {
                // One event per reason, not one per look.
                why.is_some_and(|why| why.counter().is_some() && reader.why.as_deref() != Some(why.as_str()))
            })
            .map(|(reader, why, until)| wakeups::suppressed(&reader.agent, &reader.channel, *why, *until))
            .collect();
        if !events.is_empty() {
            batch.add(Event::insert_many(tx, events)?);
        }
        tx.send(batch).await?;
        for (reader, why, _) in looked {
            if matches!(why, Some(Why::Depth | Why::Fanout))
                && let Some(Waker { cause, root, .. }) =
                    facts.pairs[&reader.pair()].wakers.iter().max_by_key(|waker| waker.depth)
            {
                let window = self.settings.window();
                self.alarms
                    .extend(alarm::bound_reached(tx, root, cause, why.map(Why::as_str), window).await?);
            }
        }
        Ok(())
    }
}
