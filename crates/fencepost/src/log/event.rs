//! Events: each records one change, with its caller, its time, the states before and after, and the fence.
//!
//! The transaction that makes a change also writes its event, under the lock of the changed row. An event's position is
//! opaque text. The events of one resource are in the order of its changes, and a follower misses none. On PostgreSQL
//! that needs care, because sequence order is not commit order (`migrations/0008_order.sql`): an event gets the
//! position of the newest transaction that was over when it was written, or of its own if that is newer. A follower
//! reads only below the oldest transaction that still runs; events of that transaction and of later ones are above.

use crate::{
    db::{Stmt, Tx, set},
    error::{Code, Error, Result},
    params,
    topic::Topic,
};

/// One change, as the log records it.
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
    /// The waiting claims that it could satisfy. `None`: any of them.
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

    /// Adds a person's reason to the details.
    pub fn because(mut self, reason: Option<&str>) -> Self {
        if let Some(reason) = reason {
            self.details.get_or_insert_with(|| serde_json::json!({}))["reason"] = reason.into();
        }
        self
    }

    /// The holder's agent, or else the caller's.
    fn agent<'a>(&'a self, tx: &'a Tx<'_>) -> Option<&'a str> {
        self.agent.as_deref().or(tx.caller.agent.as_deref())
    }

    /// The topic to store. A claim and its holder's reports free nothing, so they wake no claim.
    fn topic(&self) -> Topic {
        match self.kind.rsplit('.').next() {
            Some("claimed" | "progress" | "checkpoint" | "step" | "noted" | "paused") => Topic::Nobody,
            _ => self.topic.clone().unwrap_or(Topic::Everyone),
        }
    }

    pub fn insert(self, tx: &Tx<'_>) -> Stmt {
        Stmt::log(
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
                tx.fingerprint(),
            ],
        )
    }

    /// Inserts any number of events by one statement.
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
        Ok(Stmt::log(
            "insert into event(at, kind, resource, from_state, to_state, run, agent, fence, request, details, topic, asked)
             select cast(?1 as bigint), value ->> 'kind', value ->> 'resource', value ->> 'from', value ->> 'to',
               value ->> 'run', value ->> 'agent', cast(value ->> 'fence' as bigint), ?2, value ->> 'details',
               value ->> 'topic', cast(?4 as text)
             from json_each(?3) order by key",
            params![tx.now, tx.opening.request.as_deref(), set(rows)?, tx.fingerprint()],
        ))
    }
}

/// Positions of the epoch before are this much lower.
pub(crate) const EPOCH: i64 = 1 << 48;

/// An event's position in the log, counted from the start of this epoch. Positions of earlier epochs are negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Position {
    pub ord: i64,
    pub id: i64,
}

impl Position {
    /// The opaque text that callers get: `ORD.ID` in the first epoch, `EPOCH.ORD.ID` in later ones.
    pub fn text(self, epoch: i64) -> String {
        let Position { ord, id } = self;
        match epoch + ord.div_euclid(EPOCH) {
            ..=0 => format!("{}.{id}", ord.rem_euclid(EPOCH)),
            epoch => format!("{epoch}.{}.{id}", ord.rem_euclid(EPOCH)),
        }
    }

    /// Reads a position that this epoch or an earlier one gave out.
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
    fn other_text_is_refused() {
        let code = |text| Position::read(text, 1).unwrap_err().code();
        for text in ["", "1", "-1.2", "1.-2", "x.1", "0.1.2", "1.2.3.4", "1..2", "1.281474976710656.2"] {
            assert_eq!(code(text), Code::Invalid, "{text}");
        }
        assert_eq!(code("2.1.2"), Code::NotFound);
    }
}
