//! Named locks: the simplest claimable noun. A lock's row is created by its first claim.

use crate::{
    clock::Time,
    db::{Batch, Row, Slot, Stmt, Tx},
    engine::op::verbs,
    error::Result,
    ids::Resource,
    lease::{ClaimState, Hold, Last},
    log::Event,
    params,
    topic::Topic,
};

verbs![claim::Claim];
pub(crate) mod claimable;
pub(crate) mod lapse;
pub(crate) mod release;

#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub name: String,
    pub fence: i64,
    pub delivery: i64,
    pub hold: Option<Hold>,
    pub last: Option<Last>,
}

macro_rules! columns {
    ($rest:literal) => {
        concat!(
            "select lock.name, lock.fence, lock.delivery, lock.claimed_at, lock.until_at, lock.last_fence, lock.last_verb,
               lock.last_digest, run.key as run_key, run.name as run_name, run.agent as run_agent,
               run.expires_at as run_expires_at, run.ended_at as run_ended_at
             from lock left join run on run.key = lock.run ",
            $rest
        )
    };
}
pub(crate) use columns;

impl Record {
    pub fn read(mut row: Row) -> Result<Self> {
        Ok(Self {
            name: row.get("name")?,
            fence: row.get("fence")?,
            delivery: row.get("delivery")?,
            hold: Hold::read(&mut row)?,
            last: Last::read(&mut row)?,
        })
    }
    pub fn claim_state(&self) -> ClaimState {
        ClaimState { fence: self.fence, hold: self.hold.clone(), closed: None, last: self.last.clone() }
    }
    pub fn resource(&self) -> Resource {
        Resource::new("lock", &self.name)
    }
    fn state(&self) -> &'static str {
        if self.hold.is_some() { "held" } else { "free" }
    }
    /// An event of this lock. `before` is its state before the change.
    fn event(&self, kind: &'static str, before: &Record) -> Event {
        let hold = before.hold.as_ref().or(self.hold.as_ref());
        Event {
            run: hold.map(|hold| hold.run.clone()),
            agent: hold.and_then(|hold| hold.agent.clone()),
            fence: Some(self.fence),
            topic: Some(Topic::lock(&self.name)),
            ..Event::new(kind, self.resource().to_string()).states(before.state(), self.state())
        }
    }
    /// Ends the claim by this verb.
    fn free(&self, verb: &str) -> Record {
        let last = self.hold.as_ref().map(|hold| Last::new(hold.fence, verb, &[]));
        Record { hold: None, last: last.or_else(|| self.last.clone()), ..self.clone() }
    }

    /// Writes the claim columns if the row has not changed since it was read, and the run it depends on is alive.
    fn save(&self, before: &Record, alive: Option<i64>, now: Time) -> Stmt {
        let hold = self.hold.as_ref();
        Stmt::write(
            "update lock set run = ?3, fence = ?4, until_at = ?5, claimed_at = ?6, last_fence = ?7, last_verb = ?8,
               last_digest = ?9, updated_at = ?10
             where name = ?1 and fence = ?2
             and (cast(?11 as bigint) is null
               or exists (select 1 from run where key = ?11 and ended_at is null and expires_at > ?10))",
            params![
                &self.name,
                before.fence,
                hold.map(|hold| hold.run_key),
                self.fence,
                hold.and_then(|hold| hold.until),
                hold.map(|hold| hold.claimed_at),
                self.last.as_ref().map(|last| last.fence),
                self.last.as_ref().map(|last| last.verb.as_str()),
                self.last.as_ref().map(|last| last.digest.as_str()),
                now,
                alive,
            ],
        )
    }
}

pub(crate) async fn load(tx: &mut Tx<'_>, name: &str) -> Result<Option<Record>> {
    let rows = tx.query(columns!("where lock.name = ?1"), params![name]).await?;
    rows.into_iter().next().map(Record::read).transpose()
}

/// Locks the lock's row, then reads it.
pub(crate) fn add_locked(batch: &mut Batch, name: &str) -> Slot {
    batch.add(Stmt::lock("select 1 from lock where name = ?1 for update", params![name]));
    batch.add(Stmt::read(columns!("where lock.name = ?1"), params![name]))
}
