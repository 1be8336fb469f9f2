use super::{
    alarm,
    breaker::BreakerState,
    facts::{Facts, Reader, Roots, backlog, nested_loops, readers},
    rule::{Why, budget},
    settings::{Setting, Settings},
    state,
};
use crate::{
    caller::Access,
    clock::Time,
    db::{Batch, Row, Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::check,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Show the scheduler of wake-ups: settings and their sources, the breaker, pending and running wake-ups, budgets, and what was
/// suppressed and why.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Show {
    /// At most this many pairs (default 100, at most 1000).
    #[serde(default)]
    pub limit: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Shown {
    pub settings: Vec<SettingView>,
    pub breaker: BreakerState,
    /// Pending and running wake-ups of agents that are online.
    pub pending_jobs: i64,
    /// Counts since the fleet was created: `scheduled`, `suppressed_budget`, `suppressed_breaker`, `suppressed_cause`, `reclaimed`.
    pub counts: BTreeMap<String, i64>,
    /// Agents with a wake-up in a channel, then those that wait for one.
    pub pairs: Vec<PairView>,
    /// Alarms, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alarms: Vec<AlarmView>,
    /// Servers whose environment has another value than the fleet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ServerDiffers>,
}

/// A setting in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SettingView {
    pub name: Setting,
    /// The channel, if this is its own value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    pub value: i64,
    /// `default`, or who set it.
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_at: Option<Time>,
}

/// An agent in a channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PairView {
    pub channel: String,
    pub agent: String,
    /// `pending`, `running` or `waiting`.
    pub state: String,
    /// The message of its wake-up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<i64>,
    /// The run that works on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Why it was not woken at the last look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
    /// It is looked at again at this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// How many wake-ups it may still have in this window.
    pub budget_left: i64,
    /// Looks that were suppressed since its last wake-up.
    pub suppressed: i64,
}

/// An alarm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AlarmView {
    pub at: Time,
    /// `ignored_work` while it holds; `cause` when a chain of causes reached a limit within the last window.
    pub alarm: String,
    pub message: String,
}

/// A server whose environment has another value than the fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerDiffers {
    pub server: String,
    pub name: Setting,
    /// The environment variable, and its value there.
    pub variable: String,
    pub value: i64,
    /// The fleet's value.
    pub fleet: i64,
}

impl Op for Show {
    const NAME: &'static str = "storm/show";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Shown;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Shown> {
        let limit = self.limit.unwrap_or(100);
        check::range("limit", limit, 1, 1000)?;
        let mut batch = Batch::new();
        batch.add(nested_loops());
        let state = batch.add(state::stmt());
        let settings = batch.add(Settings::stmt());
        let backlog = batch.add(backlog(tx.now));
        let counters = batch.add(state::counters());
        let servers = batch.add(Stmt::read(
            "select server, name, value from server_setting where until_at > ?1 order by server, name",
            params![tx.now],
        ));
        let mut answers = tx.send(batch).await?;
        let (breaker, alarm) = state::read(&answers.take(state).rows)?;
        let settings = Settings::read(&answers.take(settings).rows)?;
        let pending_jobs = answers.take(backlog).rows[0].get("n")?;
        let counts = state::read_counters(&answers.take(counters).rows)?;
        let servers = differing(&answers.take(servers).rows, &settings)?;
        let mut alarms: Vec<AlarmView> = alarm
            .map(|(message, at)| AlarmView { at, alarm: "ignored_work".into(), message })
            .into_iter()
            .collect();
        alarms.extend(causes(tx, &settings).await?);
        Ok(Shown {
            settings: views(&settings),
            breaker: breaker.into(),
            pending_jobs,
            counts,
            pairs: pairs(tx, &settings, limit).await?,
            alarms,
            servers,
        })
    }
}

fn views(settings: &Settings) -> Vec<SettingView> {
    let fleet = Setting::ALL.into_iter().map(|name| {
        let stored = settings.stored("", name);
        SettingView {
            name,
            channel: None,
            value: settings.get(name),
            source: stored.map_or_else(|| "default".into(), |stored| stored.source.clone()),
            set_at: stored.map(|stored| stored.at).filter(|at| at.0 > 0),
        }
    });
    let own = settings.of_channels().into_iter().map(|(channel, name, stored)| SettingView {
        name,
        channel: Some(channel.to_owned()),
        value: stored.value,
        source: stored.source.clone(),
        set_at: Some(stored.at),
    });
    fleet.chain(own).collect()
}

fn differing(rows: &[Row], settings: &Settings) -> Result<Vec<ServerDiffers>> {
    let mut differ = Vec::new();
    for row in rows {
        let Some(name) = Setting::read(&row.get::<String>("name")?) else { continue };
        let (value, fleet) = (row.get("value")?, settings.get(name));
        if value != fleet {
            let variable = name.variable().to_owned();
            differ.push(ServerDiffers { server: row.get("server")?, name, variable, value, fleet });
        }
    }
    Ok(differ)
}

/// The chains of causes that reached a limit within the last window.
async fn causes(tx: &mut Tx<'_>, settings: &Settings) -> Result<Vec<AlarmView>> {
    let rows = tx
        .query(
            "select at, details from event where resource = 'storm' and kind = 'storm.alarm' and at > ?1 order by id desc limit 20",
            params![Time(tx.now.0 - settings.window().0)],
        )
        .await?;
    let mut alarms = Vec::new();
    for row in &rows {
        let details: Option<String> = row.get("details")?;
        let details: serde_json::Value =
            serde_json::from_str(details.as_deref().unwrap_or("null")).unwrap_or_default();
        if details["alarm"] != "cause" {
            continue;
        }
        let message = alarm::message(&details);
        alarms.push(AlarmView { at: row.get("at")?, alarm: "cause".into(), message });
    }
    Ok(alarms)
}

/// The unfinished wake-ups of one part of the mailboxes, by an index that has only them.
macro_rules! jobs {
    ($part:literal) => {
        concat!(
            "select message.id, message.run, wakeup.agent, wakeup.channel, run.name from message
             join wakeup on wakeup.message = message.id
             left join run on run.key = message.run and run.ended_at is null and run.expires_at > ?1
             where message.mailbox >= 'wakeups/' and message.mailbox < 'wakeups0' and ",
            $part,
            " order by message.mailbox, message.id limit ?2"
        )
    };
}

async fn pairs(tx: &mut Tx<'_>, settings: &Settings, limit: i64) -> Result<Vec<PairView>> {
    let mut batch = Batch::new();
    let running = batch.add(Stmt::read(jobs!("message.run is not null"), params![tx.now, limit]));
    let ready = batch.add(Stmt::read(jobs!("message.ready = 1"), params![tx.now, limit]));
    let delayed = batch.add(Stmt::read(
        jobs!("message.ready = 0 and message.run is null and message.finished_at is null"),
        params![tx.now, limit],
    ));
    let waiting = batch.add(Stmt::read(
        readers!("where reader.wake_at is not null order by reader.wake_at limit ?1"),
        params![limit],
    ));
    let mut answers = tx.send(batch).await?;
    let mut jobs = BTreeMap::new();
    for slot in [running, ready, delayed] {
        for row in answers.take(slot).rows {
            let run: Option<String> = row.get("name")?;
            jobs.insert(
                (row.get::<String>("agent")?, row.get::<String>("channel")?),
                (row.get::<i64>("id")?, run),
            );
        }
    }
    let mut readers = Reader::read_all(&answers.take(waiting).rows)?;
    readers.retain(|reader| !jobs.contains_key(&reader.pair()));
    for (agent, channel) in jobs.keys() {
        let sql = readers!("where reader.agent = ?1 and reader.channel = ?2");
        readers.extend(Reader::read_all(&tx.query(sql, params![agent, channel]).await?)?);
    }
    let facts = Facts::load(tx, &readers, settings, Roots::Read).await?;
    let views = readers.into_iter().map(|reader| {
        let limits = settings.limits(&reader.channel);
        let left = match budget(&facts.pairs[&reader.pair()].woken, &limits, tx.now) {
            Ok(left) => left,
            Err((Why::Interval, _)) => {
                let woken = facts.pairs[&reader.pair()].woken.iter();
                limits.max_triggers.saturating_sub(woken.filter(|at| at.plus(limits.window) > tx.now).count())
            }
            Err(_) => 0,
        };
        let job = jobs.remove(&reader.pair());
        let (message, run) = job.map_or((None, None), |(id, run)| (Some(id), run));
        let state = match (message, &run) {
            (Some(_), Some(_)) => "running",
            (Some(_), None) => "pending",
            (None, _) => "waiting",
        };
        PairView {
            state: state.into(),
            why: reader.why.as_deref().and_then(Why::read).filter(|_| message.is_none()),
            until: reader.wake_at.filter(|_| message.is_none()),
            budget_left: left as i64,
            suppressed: reader.suppressed,
            channel: reader.channel,
            agent: reader.agent,
            message,
            run,
        }
    });
    let mut views: Vec<PairView> = views.collect();
    views.sort_by(|a, b| (&a.state, &a.channel, &a.agent).cmp(&(&b.state, &b.channel, &b.agent)));
    views.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(views)
}
