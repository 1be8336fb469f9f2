use super::{Record, agents, list, not_found};
use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::{Batch, Stmt, Tx, set},
    engine::op::{OnRetry, Op, erased},
    error::{Code, Error, Result},
    limits::{TEXT_MAX, TTL_MAX, check},
    log::Event,
    ops::run::settle,
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Pause an agent, or all of them: polls get no trigger until the agent is resumed, or until the pause ends. Running work
/// goes on, and a claim by hand is not refused.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// The agent. Name one, or set `all`.
    #[serde(default)]
    pub agent: Option<String>,
    /// All agents. An agent's key may not do that.
    #[serde(default)]
    pub all: bool,
    /// Shown to callers whose poll is refused.
    #[serde(default)]
    pub reason: Option<String>,
    /// The pause ends by itself after this long (default: it lasts until `agent/resume`). Of two pauses the one that ends
    /// later counts, so this shortens none.
    #[serde(default)]
    pub for_ms: Option<Millis>,
    /// Also end the agent's live triggers, as if their runs were settled as `released`: no attempt counts, and offers go
    /// back to the agent.
    #[serde(default)]
    pub now: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Paused {
    pub agents: Vec<list::Agent>,
    /// With `now`: the runs that this call ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<String>,
}

/// A pause in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseState {
    pub since: Time,
    /// The pause ends by itself at this time; without one it lasts until the agent is resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl PauseState {
    /// At exactly `until` it is over.
    pub fn is_over(&self, now: Time) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// The rule: of two pauses the one that ends later counts, with its reason. One without an end ends last.
    fn or_later(self, other: Self) -> Self {
        let is_later = match (self.until, other.until) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(this), Some(other)) => other >= this,
        };
        match is_later {
            true => Self { since: self.since, until: other.until, reason: other.reason.or(self.reason) },
            false => self,
        }
    }

    /// The refusal of a poll.
    pub(super) fn refusal(&self, agent: &str, now: Time) -> Error {
        let reason = self.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
        let until = self.until.map_or(String::new(), |until| format!(" (until {until})"));
        let mut error = Error::new(Code::Paused, format!("agent `{agent}` is paused{reason}{until}"))
            .with("agent", agent)
            .hint(format!("fence agent resume {agent} resumes it; --wait waits until it is resumed"));
        if let Some(until) = self.until {
            error = error.with("until", until).with("retry_after_ms", until.since(now));
        }
        error
    }
}

impl Op for Pause {
    const NAME: &'static str = "agent/pause";
    const ACCESS: Access = Access::Agent;
    // Never: a repeat could pause an agent that somebody has resumed meanwhile.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"agent":"codex-1","reason":"the disk is full"}"#;
    type Reply = Paused;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Paused> {
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        if let Some(span) = self.for_ms {
            check::span("for_ms", span, Millis(1), TTL_MAX)?;
        }
        let found = named(tx, self.agent.as_deref(), self.all).await?;
        let reason = self.reason.as_ref().map(|reason| reason.trim().to_owned());
        let new = PauseState {
            since: tx.now,
            until: self.for_ms.map(|span| tx.now.plus(span)),
            reason: reason.filter(|reason| !reason.is_empty()),
        };
        let (mut rows, mut events) = (Vec::new(), Vec::new());
        for agent in &found {
            let had = agent.paused(tx.now).cloned();
            let pause = had.clone().map_or_else(|| new.clone(), |had| had.or_later(new.clone()));
            if had.as_ref() == Some(&pause) {
                continue;
            }
            rows.push(json!({
                "name": agent.name, "since": pause.since.0, "until": pause.until.map(|at| at.0), "reason": pause.reason,
            }));
            events.push(Event {
                topic: Some(Topic::agent(&agent.name)),
                details: Some(json!({ "reason": pause.reason, "until": pause.until, "now": self.now })),
                ..Event::new("agent.paused", format!("agent/{}", agent.name))
            });
        }
        if !rows.is_empty() {
            let mut batch = Batch::new();
            batch.add(Stmt::write(
                "update agent set paused_at = cast(item.value ->> 'since' as bigint),
                   paused_until = cast(item.value ->> 'until' as bigint), paused_reason = item.value ->> 'reason'
                 from json_each(?1) as item where agent.name = item.value ->> 'name'",
                params![set(rows)?],
            ));
            batch.add(Event::insert_many(tx, events)?);
            tx.send(batch).await?;
        }
        let ended = match self.now {
            true => settle::release_triggers(tx, found.iter().map(|agent| agent.name.as_str())).await?,
            false => Vec::new(),
        };
        Ok(Paused { agents: shown(tx, self.agent.as_deref()).await?, ended })
    }
}

/// The agent of this name, or all that have not left, locked: the polls under way have committed, and later ones see
/// the change. In the order of their names, so that two such calls do not wait for each other.
pub(super) async fn named(tx: &mut Tx<'_>, agent: Option<&str>, all: bool) -> Result<Vec<Record>> {
    let rows = match (agent, all) {
        (Some(name), false) => {
            check::plain_name("agent", name)?;
            tx.caller.acting_as("agent", Some(name))?;
            tx.query(agents!("where name = ?1 and left_at is null /*pg for update*/"), params![name]).await?
        }
        (None, true) => {
            tx.caller.may("`all`", Access::Admin)?;
            tx.query(agents!("where left_at is null order by name /*pg for update*/"), params![]).await?
        }
        _ => return Err(Error::invalid("agent", "or `all` is needed: exactly one of them")),
    };
    match agent {
        Some(name) if rows.is_empty() => Err(not_found(name)),
        _ => rows.iter().map(Record::read).collect(),
    }
}

/// The reply's agents: the one of this name, or all that have not left.
pub(super) async fn shown(tx: &mut Tx<'_>, agent: Option<&str>) -> Result<Vec<list::Agent>> {
    match agent {
        Some(name) => Ok(list::of(tx, name).await?.into_iter().collect()),
        None => {
            let mut agents = list::all(tx).await?.agents;
            agents.retain(|agent| agent.left_at.is_none());
            Ok(agents)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_pauses_the_later_end_counts_with_its_reason() {
        let pause = |since: i64, until: Option<i64>, reason: Option<&str>| PauseState {
            since: Time(since),
            until: until.map(Time),
            reason: reason.map(str::to_owned),
        };
        let (a, b) = (Some("a"), Some("b"));
        for (had, new, counts) in [
            (pause(1, Some(10), a), pause(5, Some(20), b), pause(1, Some(20), b)),
            (pause(1, Some(10), a), pause(5, Some(20), None), pause(1, Some(20), a)),
            (pause(1, Some(20), a), pause(5, Some(10), b), pause(1, Some(20), a)),
            (pause(1, Some(20), a), pause(5, None, b), pause(1, None, b)),
            (pause(1, None, a), pause(5, Some(90), b), pause(1, None, a)),
            (pause(1, None, a), pause(5, None, None), pause(1, None, a)),
            (pause(1, None, None), pause(5, None, b), pause(1, None, b)),
        ] {
            assert_eq!(had.clone().or_later(new.clone()), counts, "{had:?}, then {new:?}");
        }
        assert!(!pause(1, Some(10), None).is_over(Time(9)) && pause(1, Some(10), None).is_over(Time(10)));
        assert!(!pause(1, None, None).is_over(Time(i64::MAX)));
    }
}
