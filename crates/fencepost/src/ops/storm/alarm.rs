//! Alarms: work waits although agents are online, and a chain of causes that reached its limit.

use super::{chain, facts::online, state::Alarm};
use crate::{
    clock::{Millis, Time},
    db::{Batch, Stmt, Tx},
    error::Result,
    log::Event,
    params,
    topic::Topic,
};
use serde_json::json;

/// Work that nobody picked up for this long, while agents are online, is an alarm.
const IGNORED: Millis = Millis::minutes(5);
/// Agents that are looked at: those that were heard last.
const AGENTS: i64 = 50;
/// The newest events that are searched for a claim.
const EVENTS: i64 = 20;

/// SQL: the first of a queue that is ready for long, if it is among the next 20 of its order.
macro_rules! ready {
    ($resource:literal, $since:literal, $queue:literal) => {
        concat!(
            "(select ",
            $resource,
            " from (select * from ",
            $queue,
            " limit 20) as head where ",
            $since,
            " <= ?2 limit 1)"
        )
    };
}

/// The alarm that holds now: ready work, an agent that could take it, and nothing picked up for [`IGNORED`]. A server asks each second,
/// so everything is read at the head of an index: also in a large fleet that is only a few rows.
pub(super) async fn current(tx: &mut Tx<'_>) -> Result<Option<String>> {
    let since = Time(tx.now.0 - IGNORED.0);
    let mut batch = Batch::new();
    // The runs of servers, for their jobs, pick up nothing.
    let runs = "select opened_at as at from run where name not like 'fence/%' order by key desc limit 1";
    let runs = batch.add(Stmt::read(runs, params![]));
    let triggers = batch.add(Stmt::read("select at from triggered order by at desc limit 1", params![]));
    // An older run may claim, too.
    let claims = batch.add(Stmt::read(
        "select max(at) as at from (select kind, at from event order by id desc limit ?1) as newest
         where kind in ('task.claimed', 'message.claimed', 'mentions.claimed')",
        params![EVENTS],
    ));
    let mut answers = tx.send(batch).await?;
    for slot in [runs, triggers, claims] {
        let rows = answers.take(slot).rows;
        let at = rows.first().map(|row| row.get::<Option<Time>>("at")).transpose()?.flatten();
        if at.is_some_and(|at| at > since) {
            return Ok(None);
        }
    }
    // Own work first, then the pool for a worker.
    let rows = tx
        .query(
            concat!(
                "select name, own, pool from (
                   select agent.name as name, coalesce(",
                ready!(
                    "'task/' || board || '-' || n",
                    "updated_at",
                    "task where ready = 2 and assignee = agent.name order by priority desc, seq"
                ),
                ", ",
                ready!(
                    "'message/' || id",
                    "created_at",
                    "message where ready = 1 and mailbox = 'inbox/' || agent.name order by priority desc, id"
                ),
                ", ",
                ready!(
                    "'message/' || id",
                    "created_at",
                    "message where ready = 1 and mailbox = 'wakeups/' || agent.name and agent.wakes_until > ?1 order by priority desc, id"
                ),
                ", ",
                ready!(
                    "'mentions/' || agent || '/' || channel",
                    "since",
                    "reader where ready = 1 and reader.agent = agent.name order by since"
                ),
                ") as own, case when agent.role = 'worker' then ",
                ready!(
                    "'task/' || board || '-' || n",
                    "updated_at",
                    "task where ready = 1 order by priority desc, seq"
                ),
                " end as pool
                   from (select * from agent where strands_at > ?1 order by strands_at desc limit ?3) as agent
                   where (agent.paused_at is null or agent.paused_until <= ?1) and ",
                online!("?1"),
                ") as waiting where own is not null or pool is not null
                 order by case when own is null then 1 else 0 end, name limit 1"
            ),
            params![tx.now, since, AGENTS],
        )
        .await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (agent, own, pool): (String, Option<String>, Option<String>) =
        (row.get("name")?, row.get("own")?, row.get("pool")?);
    let work = own.or(pool).unwrap_or_default();
    Ok(Some(format!(
        "{work} is ready and agent `{agent}` is online, but nothing was picked up for {IGNORED}"
    )))
}

/// Stores the alarm if it changed, and logs that. Returns an alarm that begins.
pub(super) async fn update(tx: &mut Tx<'_>, stored: Alarm) -> Result<Option<String>> {
    let now = current(tx).await?;
    if now.is_some() == stored.is_some() {
        return Ok(None);
    }
    let event = match &now {
        Some(text) => alarm(json!({ "alarm": "ignored_work", "message": text })),
        None => Event { topic: Some(Topic::Nobody), ..Event::new("storm.alarm_over", "storm") },
    };
    let at = now.as_ref().map(|_| tx.now);
    let save = Stmt::write("update storm set alarm = ?1, alarm_at = ?2", params![now.as_deref(), at]);
    let event = event.insert(tx);
    tx.send(Batch::from([save, event])).await?;
    Ok(now)
}

fn alarm(details: serde_json::Value) -> Event {
    Event { topic: Some(Topic::Nobody), ..Event::new("storm.alarm", "storm").details(details) }
}

/// Logs that a chain of causes reached a limit, once per root and window. Names the cycle of agents, if the chain has one. Returns
/// an alarm that begins.
pub(crate) async fn bound_reached(
    tx: &mut Tx<'_>,
    root: &str,
    cause: &str,
    bound: Option<&'static str>,
    window: Millis,
) -> Result<Option<String>> {
    let told = tx
        .query(
            "select details from event where resource = 'storm' and kind = 'storm.alarm' and at > ?1 order by id desc limit 1000",
            params![Time(tx.now.0 - window.0)],
        )
        .await?;
    for row in &told {
        let details: Option<String> = row.get("details")?;
        let details: serde_json::Value =
            serde_json::from_str(details.as_deref().unwrap_or("null")).unwrap_or_default();
        if details["root"] == root {
            return Ok(None);
        }
    }
    let cycle = chain::cycle(&chain::agents(tx, cause).await?);
    let details = json!({ "alarm": "cause", "bound": bound, "root": root, "item": cause, "cycle": cycle });
    let message = message(&details);
    let event = alarm(details).insert(tx);
    tx.one(event).await?;
    Ok(Some(message))
}

/// The alarm of a chain of causes, for people, from the details of its event.
pub(super) fn message(details: &serde_json::Value) -> String {
    let text = |name: &str| details[name].as_str().unwrap_or_default();
    let cycle =
        details["cycle"].as_str().map_or(String::new(), |cycle| format!("; agents wake each other: {cycle}"));
    format!("the chain of {} reached its limit ({}){cycle}", text("root"), text("bound"))
}
