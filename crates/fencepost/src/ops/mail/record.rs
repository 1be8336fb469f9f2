//! Reading and writing a message's row.

use super::{Message, Phase, Status, lane, not_found};
use crate::{
    clock::Time,
    db::{Batch, Row, Stmt, Tx, by_keys, key_set, set},
    error::{Error, Result},
    ids::{Resource, Token},
    lease::{ClaimState, Closed, Hold, Last, Under, hold::require, overdue::Item},
    log::Event,
    params,
    topic::Topic,
};
use std::collections::HashMap;

/// Limit on the payload bytes of one reply with several messages: all of them are in memory at once.
const ANSWER_MAX: i64 = 8 * 1024 * 1024;

/// A message's row.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub id: i64,
    pub mailbox: String,
    pub lane: Option<String>,
    pub kind: Option<String>,
    pub key: Option<String>,
    pub priority: i64,
    pub max_attempts: i64,
    /// Size of its payload in bytes.
    pub size: i64,
    pub created_at: Time,
    pub phase: Phase,
    pub outcome: Option<String>,
    /// Another message of its lane comes first.
    pub behind: bool,
    pub delayed_until: Option<Time>,
    pub attempts: i64,
    /// Number of claims in a row that expired.
    pub lapsed: i64,
    /// Number of the batch in which a poll last claimed it together with other messages.
    pub batch: Option<i64>,
    pub fence: i64,
    pub delivery: i64,
    pub last: Option<Last>,
    pub failure_reason: Option<String>,
    pub updated_at: Time,
    /// Its claim has expired but the row does not say so yet: this record has the state that expiry would write.
    pub overdue: bool,
}

impl Item for Record {
    fn key(&self) -> i64 {
        self.id
    }
}

macro_rules! state {
    () => {
        "select message.id, message.mailbox, message.lane, message.kind, message.idempotency_key, message.priority,
           message.max_attempts, message.size, message.created_at, message.status, message.outcome, message.behind, message.delayed_until,
           message.attempts, message.lapsed, message.batch, message.fence, message.delivery, message.until_at, message.claimed_at,
           message.last_fence, message.last_verb, message.last_digest, message.failure_reason, message.updated_at,
           message.finished_at, "
    };
}
pub(crate) use state;

/// Messages with the runs that hold them.
macro_rules! columns {
    ($rest:expr) => {
        concat!(
            $crate::ops::mail::record::state!(),
            "run.key as run_key, run.name as run_name, run.agent as run_agent,
               run.expires_at as run_expires_at, run.ended_at as run_ended_at
             from message left join run on run.key = message.run ",
            $rest
        )
    };
}
pub(crate) use columns;

/// Messages that no run holds. Without a join, the planner cannot choose another order.
macro_rules! unheld {
    ($rest:expr) => {
        concat!($crate::ops::mail::record::state!(), "cast(null as bigint) as run_key from message ", $rest)
    };
}
pub(crate) use unheld;

impl Record {
    pub fn read(mut row: Row) -> Result<Self> {
        let status = Status::read(&row.take::<String>("status")?)?;
        let updated_at: Time = row.take("updated_at")?;
        let finished_at: Option<Time> = row.take("finished_at")?;
        let hold = Hold::read(&mut row)?;
        Ok(Self {
            id: row.take("id")?,
            mailbox: row.take("mailbox")?,
            lane: row.take("lane")?,
            kind: row.take("kind")?,
            key: row.take("idempotency_key")?,
            priority: row.take("priority")?,
            max_attempts: row.take("max_attempts")?,
            size: row.take("size")?,
            created_at: row.take("created_at")?,
            phase: Phase::read(status, hold, finished_at.unwrap_or(updated_at)),
            outcome: row.take("outcome")?,
            behind: row.take("behind")?,
            delayed_until: row.take("delayed_until")?,
            attempts: row.take("attempts")?,
            lapsed: row.take("lapsed")?,
            batch: row.take("batch")?,
            fence: row.take("fence")?,
            delivery: row.take("delivery")?,
            last: Last::read(&mut row)?,
            failure_reason: row.take("failure_reason")?,
            updated_at,
            overdue: false,
        })
    }

    /// For the tables of cases beside the rules.
    #[cfg(test)]
    pub fn sample(phase: Phase) -> Self {
        Self {
            id: 1,
            mailbox: "box".into(),
            lane: None,
            kind: None,
            key: None,
            priority: 50,
            max_attempts: 3,
            size: 0,
            created_at: Time(0),
            phase,
            outcome: None,
            behind: false,
            delayed_until: None,
            attempts: 1,
            lapsed: 0,
            batch: None,
            fence: 1,
            delivery: 1,
            last: None,
            failure_reason: None,
            updated_at: Time(0),
            overdue: false,
        }
    }

    pub fn read_all(rows: Vec<Row>) -> Result<Vec<Self>> {
        rows.into_iter().map(Self::read).collect()
    }

    /// As many messages as fit into one reply, and at least one.
    pub fn that_fit(mut messages: Vec<Self>) -> Vec<Self> {
        let mut size = 0;
        let fit = messages.iter().take_while(|message| {
            size += message.size;
            size <= ANSWER_MAX
        });
        let fit = fit.count();
        messages.truncate(fit.max(1));
        messages
    }

    pub fn resource(&self) -> Resource {
        Resource::new("message", self.id)
    }

    /// Whether it can be claimed now. Unlike the column `ready`, this takes the time into account.
    pub fn is_ready(&self, now: Time) -> bool {
        matches!(self.phase, Phase::Pending)
            && !self.behind
            && self.delayed_until.is_none_or(|until| until <= now)
    }

    pub fn claim_state(&self) -> ClaimState {
        let closed = self.phase.is_finished().then_some(Closed::Finished);
        ClaimState { fence: self.fence, hold: self.hold().cloned(), closed, last: self.last.clone() }
    }

    pub fn status(&self) -> Status {
        self.phase.status()
    }

    /// The claim, alive or lost.
    pub fn hold(&self) -> Option<&Hold> {
        self.phase.hold()
    }

    /// Whether a run holds the message under a claim that is over.
    pub fn is_lost(&self, now: Time) -> bool {
        self.hold().is_some_and(|hold| !hold.is_alive(now))
    }

    /// Ends the claim, if there is one, with this verb. The message enters the next phase.
    pub fn end_claim(&mut self, verb: &str, content: &[Option<&str>], next: Phase) {
        if let Some(hold) = std::mem::replace(&mut self.phase, next).hold() {
            self.last = Some(Last::new(hold.fence, verb, content));
        }
    }

    /// An event for the change from `before` to this record. It names the old claim, or else the new one.
    pub fn event(&self, kind: &'static str, before: &Record) -> Event {
        let hold = before.hold().or(self.hold());
        Event {
            run: hold.map(|hold| hold.run.clone()),
            agent: hold.and_then(|hold| hold.agent.clone()),
            fence: hold.map(|hold| hold.fence),
            topic: Some(Topic::mail(&self.mailbox)),
            ..Event::new(kind, self.resource().to_string())
                .states(before.status().as_str(), self.status().as_str())
        }
    }

    pub fn view(self, now: Time) -> Message {
        let alive = self.hold().filter(|hold| hold.is_alive(now));
        let claim = alive.map(|hold| hold.claim(&self.resource()));
        Message {
            id: self.id,
            mailbox: self.mailbox,
            kind: self.kind,
            status: self.phase.status(),
            outcome: self.outcome,
            priority: self.priority,
            lane: self.lane.filter(|lane| !lane.is_empty()),
            idempotency_key: self.key,
            delayed_until: self.delayed_until.filter(|until| *until > now),
            attempts: self.attempts,
            max_attempts: self.max_attempts,
            failure_reason: self.failure_reason,
            claim,
            lapsed: self.overdue,
            created_at: self.created_at,
            updated_at: self.updated_at,
            finished_at: self.phase.finished_at(),
            ..Message::default()
        }
    }
}

/// The message, if the token holds it.
pub(super) fn held(found: Option<Record>, token: &Token, tx: &Tx<'_>) -> Result<Record> {
    let state = found.as_ref().map(Record::claim_state);
    let hold = require(state.as_ref(), token, tx.now)?;
    // The prelude checked only the first token's run, and there may be many tokens.
    tx.caller.may_use(&hold.run, hold.agent.as_deref())?;
    found.ok_or_else(|| Error::internal("a token without a message"))
}

pub(crate) async fn load(tx: &mut Tx<'_>, id: i64) -> Result<Option<Record>> {
    let rows = tx.query(columns!("where message.id = ?1"), params![id]).await?;
    rows.into_iter().next().map(Record::read).transpose()
}

pub(super) async fn require_message(tx: &mut Tx<'_>, id: i64) -> Result<Record> {
    load(tx, id).await?.ok_or_else(|| not_found(id))
}

/// Locks first and reads after: a read that waited for the lock would show old runs. Lanes are locked before their
/// messages, so that two transactions cannot wait for each other's lane and row.
pub(crate) async fn load_locked(tx: &mut Tx<'_>, ids: &[i64]) -> Result<HashMap<i64, Record>> {
    let mut batch = Batch::from([lane::lock_of(ids), lock(ids)]);
    let found = batch.add(by_keys!(read, ids, columns!("where message.id"), ""));
    let rows = tx.send(batch).await?.take(found).rows;
    rows.into_iter().map(|row| Record::read(row).map(|message| (message.id, message))).collect()
}

fn lock(ids: &[i64]) -> Stmt {
    Stmt::lock(
        "select 1 from message where id in (select cast(value ->> 'k' as bigint) from json_each(?1))
         order by id for update",
        params![key_set(ids.iter().copied())],
    )
}

/// Writes messages. A finished message is kept for its mailbox's retention time (default 30 days), and for as long as
/// its key may be repeated (7 days). `?3` is the authority ([`Under::number`]).
const SAVE: &str = "
    update message set status = item.value ->> 'status', outcome = item.value ->> 'outcome',
      attempts = cast(item.value ->> 'attempts' as bigint), lapsed = cast(item.value ->> 'lapsed' as bigint),
      delayed_until = cast(item.value ->> 'delayed' as bigint), run = cast(item.value ->> 'run' as bigint),
      fence = cast(item.value ->> 'fence' as bigint), until_at = cast(item.value ->> 'until' as bigint),
      claimed_at = cast(item.value ->> 'since' as bigint),
      last_fence = cast(item.value ->> 'last_fence' as bigint), last_verb = item.value ->> 'last_verb',
      last_digest = item.value ->> 'last_digest', failure_reason = item.value ->> 'reason',
      finished_at = cast(item.value ->> 'finished' as bigint), updated_at = ?2,
      prune_at = case
        when item.value ->> 'finished' is null then null
        when idempotency_key is not null and created_at + 604800000
            > ?2 + coalesce((select retain_ms from mailbox where name = message.mailbox), 2592000000)
          then created_at + 604800000
        else ?2 + coalesce((select retain_ms from mailbox where name = message.mailbox), 2592000000) end
    from json_each(?1) as item
    where message.id = cast(item.value ->> 'k' as bigint)
    and message.fence = cast(item.value ->> 'was' as bigint)
    and (?3 = 0 or 1 = (select 1 from run where key = cast(item.value ->> 'holder' as bigint)
      and ended_at is null and expires_at > ?2))
    and (?3 < 2 or until_at is null or until_at > ?2)";

/// Writes many changes with a few statements. The caller holds the row locks. The write checks that used and new claims
/// are alive. A finished message makes the next one of its lane ready. If a row was not written, a run has just ended,
/// and the whole call starts over.
pub(crate) async fn save(
    tx: &mut Tx<'_>,
    changes: &[(Record, Record)],
    under: Under,
    events: Vec<Event>,
) -> Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let rows = changes.iter().map(|(before, after)| {
        let (hold, last) = (after.hold(), after.last.as_ref());
        let holder = if under == Under::NewClaim { hold } else { before.hold() };
        serde_json::json!({
            "k": after.id, "was": before.fence, "holder": holder.map(|hold| hold.run_key),
            "status": after.status().as_str(), "outcome": after.outcome, "attempts": after.attempts,
            "lapsed": after.lapsed, "delayed": after.delayed_until.map(|t| t.0),
            "run": hold.map(|hold| hold.run_key), "fence": after.fence,
            "until": hold.and_then(|hold| hold.until).map(|t| t.0), "since": hold.map(|hold| hold.claimed_at.0),
            "last_fence": last.map(|last| last.fence), "last_verb": last.map(|last| &last.verb),
            "last_digest": last.map(|last| &last.digest), "reason": after.failure_reason,
            "finished": after.phase.finished_at().map(|t| t.0),
        })
    });
    let mut batch = Batch::new();
    let saved = batch.add(Stmt::write(SAVE, params![set(rows)?, tx.now, under.number()]));
    batch.add(Event::insert_many(tx, events)?);
    batch.extend(pass_on(changes.iter().map(|(_, after)| after)));
    if tx.send(batch).await?.affected(saved) < changes.len() as u64 {
        return Err(Error::raced("a run ended at this moment"));
    }
    Ok(())
}

/// Makes the next message ready in the lanes of the finished messages.
pub(super) fn pass_on<'r>(changed: impl Iterator<Item = &'r Record>) -> Option<Stmt> {
    let finished = changed.filter(|message| message.lane.is_some() && message.phase.is_finished());
    let lanes: Vec<i64> = finished.map(|message| message.id).collect();
    (!lanes.is_empty()).then(|| lane::next(&lanes))
}

#[cfg(test)]
mod tests {
    use super::SAVE;
    use crate::ops::{
        event::prune::{HISTORY, REQUESTS_KEPT},
        mail::done_many::COMPLETE,
    };

    #[test]
    fn the_statements_know_how_long_things_are_kept() {
        for sql in [SAVE, COMPLETE] {
            assert!(sql.contains(&REQUESTS_KEPT.0.to_string()) && sql.contains(&HISTORY.0.to_string()));
        }
    }
}
