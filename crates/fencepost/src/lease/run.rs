//! Runs: sessions with a lease. A run's claims live and die with it.
//!
//! A row is one incarnation. Ending it is one write, and final: from then on every token of it is dead, and expiry gives
//! back what it held in bounded batches. A name that comes back gets a new row.

use super::Hold;
use crate::{
    clock::{Millis, Time},
    db::{Row, RunRow, Stmt, Tx},
    error::{Code, Error, Result},
    ids::Owner,
    limits::check,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The lease of a run that does not say otherwise: a person's or an agent's shell.
pub const SHELL_TTL: Millis = Millis::minutes(30);

/// The reason of a run that nobody ended.
pub(crate) const LAPSED: &str = "lapsed";

/// The lease of one incarnation, as a reply showed it. Whoever is heard in writing has another one after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    pub opened_at: Time,
    pub expires_at: Time,
}

macro_rules! runs {
    ($rest:literal) => {
        concat!("select key, name, agent, ttl_ms, opened_at, expires_at, ended_at, reason from run ", $rest)
    };
}
pub(crate) use runs;

pub(crate) const BY_NAME: &str = runs!("where name = ?1 and ended_at is null");

impl RunRow {
    pub fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            key: row.get("key")?,
            name: row.get("name")?,
            agent: row.get("agent")?,
            ttl: row.get("ttl_ms")?,
            opened_at: row.get("opened_at")?,
            expires_at: row.get("expires_at")?,
            ended_at: row.get("ended_at")?,
            reason: row.get("reason")?,
        })
    }

    /// At exactly `expires_at` it is over.
    pub fn is_alive(&self, now: Time) -> bool {
        self.ended_at.is_none() && self.expires_at > now
    }

    /// The ttl to renew with, if it is time to write: a quarter of the lease is used, or a longer one is
    /// wanted. A ttl never becomes shorter.
    pub fn renewal(&self, wanted: Option<Millis>, now: Time) -> Option<Millis> {
        let ttl = wanted.map_or(self.ttl, |wanted| wanted.max(self.ttl));
        let used = ttl.0 - self.expires_at.since(now).0;
        (ttl > self.ttl || used >= ttl.0 / 4).then_some(ttl)
    }

    /// The lease that stays in force although a shorter one was asked for.
    pub fn kept(&self, wanted: Option<Millis>) -> Option<Millis> {
        wanted.filter(|wanted| *wanted < self.ttl).map(|_| self.ttl)
    }

    /// Refuses if it is not under this lease any more. Whoever asks holds the row's lock, so it stays the answer.
    pub fn under(&self, lease: Option<Lease>) -> Result<()> {
        let own = Lease { opened_at: self.opened_at, expires_at: self.expires_at };
        match lease {
            Some(lease) if lease != own => {
                Err(Error::new(Code::NotReady, format!("run `{}` was heard from since", self.name))
                    .with("expires_at", self.expires_at)
                    .hint("somebody is there: fence runs shows it, and its lease runs out if nobody is"))
            }
            _ => Ok(()),
        }
    }
}

/// Renews a run's lease. A run that ended or expired stays so. Another call may have lengthened the lease since it was
/// read, so the write itself takes the longer ttl and the later end.
pub(crate) async fn renew(tx: &mut Tx<'_>, key: i64, ttl: Millis) -> Result<u64> {
    tx.execute(
        "update run set ttl_ms = case when ttl_ms > ?2 then ttl_ms else ?2 end,
           expires_at = case
             when expires_at > ?3 + case when ttl_ms > ?2 then ttl_ms else ?2 end then expires_at
             else ?3 + case when ttl_ms > ?2 then ttl_ms else ?2 end end
         where key = ?1 and ended_at is null and expires_at > ?3",
        params![key, ttl, tx.now],
    )
    .await
}

/// Who will hold a claim: a run by name, opened if it is not there.
#[derive(Debug)]
pub(crate) struct Holder {
    pub name: String,
    pub agent: Option<String>,
    pub expires_at: Time,
    /// The incarnation's key, or `None` until it is opened.
    key: Option<i64>,
    ttl: Millis,
    /// The run is there and has no agent yet: this claim names it.
    names_agent: bool,
    /// The run's lease, if it is longer than the one that was asked for.
    lease_kept: Option<Millis>,
}

impl Holder {
    /// The caller's run as the transaction found it.
    pub fn of(tx: &Tx<'_>, name: &str, agent: Option<&str>, ttl: Option<Millis>) -> Result<Self> {
        let agent = tx.caller.acting_as("agent", agent)?;
        tx.caller.may_use_name(&format!("run `{name}`"), Owner::of_name(name))?;
        let agent = agent.as_deref();
        match &tx.opening.run {
            Some(run) if run.is_alive(tx.now) => {
                if let (Some(had), Some(given)) = (&run.agent, agent)
                    && had != given
                {
                    let message = format!("run `{name}` belongs to agent `{had}`, not to `{given}`");
                    return Err(Error::new(Code::Invalid, message)
                        .with("field", "agent")
                        .hint("one run acts for one agent: --run or FENCE_RUN names another"));
                }
                Ok(Self {
                    name: name.into(),
                    agent: run.agent.clone().or_else(|| agent.map(str::to_owned)),
                    expires_at: run.expires_at,
                    key: Some(run.key),
                    ttl: run.ttl,
                    names_agent: run.agent.is_none() && agent.is_some(),
                    lease_kept: run.kept(ttl),
                })
            }
            _ => {
                let ttl = ttl.unwrap_or(SHELL_TTL);
                Ok(Self {
                    name: name.into(),
                    agent: agent.map(str::to_owned),
                    expires_at: tx.now.plus(ttl),
                    key: None,
                    ttl,
                    names_agent: false,
                    lease_kept: None,
                })
            }
        }
    }

    /// Locks the run's row, so that it cannot be ended under a claim that is being made: without this the
    /// ending would not see the claim, and the item would be held by an ended run for ever. A run that is
    /// new is opened here.
    pub fn enter(&self, now: Time) -> Stmt {
        match self.key {
            // A run is a session of one agent: the first that is named stays.
            Some(key) if self.names_agent => Stmt::write(
                "update run set agent = ?3
                 where key = ?1 and ended_at is null and expires_at > ?2 and agent is null returning key",
                params![key, now, self.agent.as_deref()],
            ),
            Some(key) => Stmt::lock(
                "select key from run where key = ?1 and ended_at is null and expires_at > ?2 for key share",
                params![key, now],
            ),
            // Two first claims of one name at once: the second waits here, finds the first's run, and starts over
            // to join it. An upsert could bring back a row whose lease is over.
            None => Stmt::write(
                "insert into run(name, agent, ttl_ms, opened_at, expires_at) values (?1, ?2, ?3, ?4, ?5)
                 on conflict (name) where ended_at is null do nothing returning key",
                params![&self.name, self.agent.as_deref(), self.ttl, now, self.expires_at],
            ),
        }
    }

    /// What it will hold.
    pub fn hold(&self, run_key: i64, fence: i64, max: Option<Millis>, now: Time) -> Hold {
        Hold {
            run_key,
            run: self.name.clone(),
            agent: self.agent.clone(),
            run_expires_at: self.expires_at,
            run_ended_at: None,
            fence,
            claimed_at: now,
            until: max.map(|max| now.plus(max)),
            lease_kept: self.lease_kept,
        }
    }

    /// The run's lease, if it is longer than the one that was asked for.
    pub fn lease_kept(&self) -> Option<Millis> {
        self.lease_kept
    }

    /// The key, from what [`Self::enter`] answered.
    pub fn key(&self, entered: &[Row]) -> Result<i64> {
        match (self.key, entered.first()) {
            (Some(key), _) if !self.names_agent => Ok(key),
            (_, Some(row)) => row.get("key"),
            (_, None) => Err(Error::raced(format!("run `{}` ended at this moment", self.name))),
        }
    }
}

pub(crate) fn check_name(name: &str) -> Result<()> {
    check::path_name("run", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ttl: i64, expires_at: i64) -> RunRow {
        RunRow {
            key: 1,
            name: "r".into(),
            agent: None,
            ttl: Millis(ttl),
            opened_at: Time(0),
            expires_at: Time(expires_at),
            ended_at: None,
            reason: None,
        }
    }

    #[test]
    fn over_at_exactly_the_end() {
        assert!(run(1000, 1000).is_alive(Time(999)));
        assert!(!run(1000, 1000).is_alive(Time(1000)));
        assert!(!RunRow { ended_at: Some(Time(1)), ..run(1000, 1000) }.is_alive(Time(2)));
    }

    #[test]
    fn written_only_when_a_quarter_is_used_and_never_shortened() {
        assert_eq!(run(1000, 1000).renewal(None, Time(249)), None);
        assert_eq!(run(1000, 1000).renewal(None, Time(250)), Some(Millis(1000)));
        assert_eq!(run(1000, 1000).renewal(Some(Millis(4000)), Time(0)), Some(Millis(4000)));
        assert_eq!(run(1000, 1000).renewal(Some(Millis(1001)), Time(0)), Some(Millis(1001)));
        assert_eq!(run(1000, 1000).renewal(Some(Millis(10)), Time(0)), None);
    }
}
