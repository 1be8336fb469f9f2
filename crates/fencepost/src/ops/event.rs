//! The fleet's append-only log: who did what, when, from which state to which, under which fence.
//!
//! An event is written in the transaction of the change it tells of, under the lock of the row it changes. Its position
//! is opaque text. For one resource the order is that of what happened, and nothing is missed: on PostgreSQL an
//! event stands at the newest transaction that was over when it was written, or at its own if that is newer
//! (`migrations/0008_order.sql`), and a follower reads only below the oldest transaction still running. Whatever that
//! or a later one writes stands above.

use crate::{
    clock::Time,
    db::tx::{Stmt, Tx, set},
    engine::op::verbs,
    error::{Code, Error, Result},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

verbs![list::List, prune::Prune];

/// Something that happened.
#[derive(Debug, Clone, Default)]
pub(crate) struct Event {
    pub kind: &'static str,
    pub resource: String,
    pub from: Option<&'static str>,
    pub to: Option<&'static str>,
    pub run: Option<String>,
    pub agent: Option<String>,
    pub fence: Option<i64>,
    pub details: Option<serde_json::Value>,
    /// Whom it could concern, if the kind does not say it.
    pub topic: Option<Topic>,
}

impl Event {
    pub fn new(kind: &'static str, resource: impl Into<String>) -> Self {
        Event { kind, resource: resource.into(), ..Event::default() }
    }
    pub fn states(self, from: &'static str, to: &'static str) -> Self {
        Event { from: Some(from), to: Some(to), ..self }
    }
    pub fn details(self, details: serde_json::Value) -> Self {
        Event { details: Some(details), ..self }
    }

    /// With the reason that a person gave for it, beside its other details.
    pub fn because(mut self, reason: Option<&str>) -> Self {
        if let Some(reason) = reason {
            self.details.get_or_insert_with(|| serde_json::json!({}))["reason"] = reason.into();
        }
        self
    }

    /// Whoever is not named as the holder is the caller.
    fn agent<'a>(&'a self, tx: &'a Tx<'_>) -> Option<&'a str> {
        self.agent.as_deref().or(tx.caller.agent.as_deref())
    }

    /// Whom it could concern of those who wait to take something; see [`Topic`].
    fn topic(&self) -> Topic {
        match (self.kind, &self.topic) {
            // What is taken, or told of while it is held, makes nothing free.
            (
                "task.claimed" | "task.progress" | "task.checkpoint" | "task.noted" | "lock.claimed"
                | "message.claimed" | "message.checkpoint" | "mailbox.paused" | "mentions.claimed",
                _,
            ) => Topic::Nobody,
            (_, Some(topic)) => topic.clone(),
            (kind, _) if kind.starts_with("lock.") => Topic::Of(self.resource.clone()),
            _ => Topic::Everyone,
        }
    }

    pub fn insert(self, tx: &Tx<'_>) -> Stmt {
        Stmt::new(
            "insert into event(at, kind, resource, from_state, to_state, run, agent, fence, request, details, topic, asked)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
            params![
                tx.now,
                self.kind,
                &self.resource,
                self.from,
                self.to,
                self.run.as_deref(),
                self.agent(tx),
                self.fence,
                tx.opening.request.as_deref(),
                self.details.as_ref().map(ToString::to_string),
                self.topic().text(),
                tx.asked(),
            ],
        )
    }

    /// Any number of events, one statement.
    pub fn insert_many(tx: &Tx<'_>, mut events: Vec<Event>) -> Result<Stmt> {
        if events.len() == 1 {
            return Ok(events.remove(0).insert(tx));
        }
        let rows = events.iter().map(|event| {
            serde_json::json!({
                "kind": event.kind, "resource": event.resource, "from": event.from, "to": event.to,
                "run": event.run, "agent": event.agent(tx), "fence": event.fence,
                "details": event.details.as_ref().map(ToString::to_string), "topic": event.topic().text(),
            })
        });
        Ok(Stmt::new(
            "insert into event(at, kind, resource, from_state, to_state, run, agent, fence, request, details, topic, asked)
             select cast(?1 as bigint), value ->> 'kind', value ->> 'resource', value ->> 'from', value ->> 'to',
               value ->> 'run', value ->> 'agent', cast(value ->> 'fence' as bigint), ?2, value ->> 'details',
               value ->> 'topic', cast(?4 as text)
             from json_each(?3) order by key",
            params![tx.now, tx.opening.request.as_deref(), set(rows)?, tx.asked()],
        ))
    }
}

/// Whom an event could concern of those who wait to take something. An event that leaves somebody out who could take
/// something now leaves them asleep; one that names too many costs a look each.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    Everyone,
    Nobody,
    Of(String),
}

const ENDED: &str = "ended/";
const DEAD: &str = "dead/";

impl Topic {
    /// That a task is finished: its board may be, too, and leads are told.
    pub fn tasks() -> Self {
        Topic::Of("task".into())
    }
    pub fn lock(name: &str) -> Self {
        Topic::Of(format!("lock/{name}"))
    }
    /// Tasks that are anyone's.
    pub fn pool() -> Self {
        Topic::Of("pool".into())
    }
    /// What only this agent could take.
    pub fn agent(name: &str) -> Self {
        Topic::Of(format!("agent/{name}"))
    }
    /// A run of this agent has ended, with nothing in its hands: it may have room for more.
    pub fn ended(agent: Option<&str>) -> Self {
        Topic::Of(format!("{ENDED}{}", agent.unwrap_or_default()))
    }
    /// The same, and what it held is still to be given back.
    pub fn dead(agent: Option<&str>) -> Self {
        Topic::Of(format!("{DEAD}{}", agent.unwrap_or_default()))
    }
    pub fn leaves_something_due(&self) -> bool {
        matches!(self, Topic::Of(topic) if topic.starts_with(DEAD))
    }
    pub fn mail(mailbox: &str) -> Self {
        Topic::Of(format!("mail/{mailbox}"))
    }
    /// As it is stored.
    fn text(&self) -> Option<&str> {
        match self {
            Topic::Everyone => None,
            Topic::Nobody => Some(""),
            Topic::Of(topic) => Some(topic),
        }
    }
    pub fn read(text: Option<String>) -> Self {
        match text {
            None => Topic::Everyone,
            Some(text) if text.is_empty() => Topic::Nobody,
            Some(text) => Topic::Of(text),
        }
    }
}

/// Events of the epoch before stand this much lower.
pub(crate) const EPOCH: i64 = 1 << 48;

/// Where an event stands in the log of this epoch; one of an earlier epoch stands below 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Position {
    pub ord: i64,
    pub id: i64,
}

impl Position {
    /// As it is given out: `ORD.ID` in the first epoch, `EPOCH.ORD.ID` in later ones. Opaque: compare nothing, just hand it
    /// back.
    pub fn text(self, epoch: i64) -> String {
        let Position { ord, id } = self;
        match epoch + ord.div_euclid(EPOCH) {
            ..=0 => format!("{}.{id}", ord.rem_euclid(EPOCH)),
            epoch => format!("{epoch}.{}.{id}", ord.rem_euclid(EPOCH)),
        }
    }

    /// Reads what any epoch up to this one gave out.
    pub fn read(text: &str, epoch: i64) -> Result<Self> {
        let parts = text.split('.').map(|part| part.parse::<i64>().ok().filter(|part| *part >= 0));
        let read = match parts.collect::<Option<Vec<_>>>().as_deref() {
            Some(&[ord, id]) => Some((0, ord, id)),
            Some(&[given, ord, id]) if given > 0 => Some((given, ord, id)),
            _ => None,
        };
        let (given, ord, id) = read.filter(|(_, ord, _)| *ord < EPOCH).ok_or_else(|| {
            Error::new(Code::Invalid, "`since` is not a position that this fleet gave out")
                .with("field", "since")
                .hint("use `position` of the last event you saw, or leave it out to begin at the oldest")
        })?;
        let later = given.checked_sub(epoch).filter(|later| *later <= 0).ok_or_else(not_of_this_log)?;
        Ok(Position { ord: ord + later * EPOCH, id })
    }
}

pub(crate) fn not_of_this_log() -> Error {
    Error::new(Code::NotFound, "this position is not of this log: was the fleet restored?")
        .hint("start over from the fleet's present state")
}

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Entry {
    /// Where it stands. Opaque; give it as `since` to read on from here.
    pub position: String,
    pub at: Time,
    pub kind: String,
    pub resource: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<i64>,
    /// The title of its task as it is now, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<serde_json::Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_in_every_later_epoch() {
        let position = Position { ord: 740, id: 3 };
        assert_eq!((position.text(0).as_str(), position.text(2).as_str()), ("740.3", "2.740.3"));
        for (given, now) in [(0, 0), (0, 1), (0, 5), (2, 2), (2, 3)] {
            let text = position.text(given);
            let read = Position::read(&text, now).unwrap();
            assert_eq!(read, Position { ord: 740 - (now - given) * EPOCH, id: 3 });
            assert_eq!(read.text(now), text);
        }
        let first = Position::default();
        assert_eq!(Position::read(&first.text(1), 2).unwrap().text(2), "1.0.0");
    }

    #[test]
    fn what_is_no_position_is_refused() {
        let code = |text| Position::read(text, 1).unwrap_err().code();
        for text in ["", "1", "-1.2", "1.-2", "x.1", "0.1.2", "1.2.3.4", "1..2", "1.281474976710656.2"] {
            assert_eq!(code(text), Code::Invalid, "{text}");
        }
        assert_eq!(code("2.1.2"), Code::NotFound);
    }
}
