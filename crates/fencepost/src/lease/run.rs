//! Runs: sessions with a lease. A run's claims live and die with it.
//!
//! A row is one incarnation. Ending it is one write, and final: from then on all its tokens are invalid, and expiry
//! gives back its items in bounded batches. A name that is used again gets a new row.

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

/// The default lease of a run: long enough for a person's or an agent's shell.
pub const SHELL_TTL: Millis = Millis::minutes(30);

/// The end reason of a run whose lease expired.
pub(crate) const LAPSED: &str = "lapsed";

/// The lease of one incarnation, as a reply showed it. A written renewal changes it.
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

    /// The ttl to renew with, if a write is due: a quarter of the lease is used, or a longer ttl is requested. A
    /// ttl never becomes shorter.
    pub fn renewal(&self, wanted: Option<Millis>, now: Time) -> Option<Millis> {
        let ttl = wanted.map_or(self.ttl, |wanted| wanted.max(self.ttl));
        let used = ttl.0 - self.expires_at.since(now).0;
        (ttl > self.ttl || used >= ttl.0 / 4).then_some(ttl)
    }

    /// The lease that stays in force although a shorter one was requested.
    pub fn kept(&self, wanted: Option<Millis>) -> Option<Millis> {
        wanted.filter(|wanted| *wanted < self.ttl).map(|_| self.ttl)
    }

    /// Refuses if this is no longer the run's lease. The caller holds the row's lock, so the answer stays valid.
    pub fn under(&self, lease: Option<Lease>) -> Result<()> {
        let own = Lease { opened_at: self.opened_at, expires_at: self.expires_at };
        lease.filter(|lease| *lease != own).map_or(Ok(()), |_| Err(self.renewed()))
    }

    /// Refuses if the run was renewed since this was its lease, or ended and began again. Only renewals move its end to a
    /// later time.
    pub fn not_renewed_since(&self, lease: Option<Lease>) -> Result<()> {
        let renewed = |lease: &Lease| self.opened_at != lease.opened_at || self.expires_at > lease.expires_at;
        lease.filter(renewed).map_or(Ok(()), |_| Err(self.renewed()))
    }

    fn renewed(&self) -> Error {
        Error::new(Code::NotReady, format!("run `{}` was renewed since", self.name))
            .with("expires_at", self.expires_at)
            .hint("the run is in use: fence runs shows it; its lease expires if nobody renews it")
    }
}

/// Renews a run's lease. A run that ended or expired stays so. Another call may have lengthened the lease since it
/// was read, so the statement itself takes the longer ttl and the later end.
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

/// The holder of a new claim: a run by name, which is opened if it does not exist.
#[derive(Debug)]
pub(crate) struct Holder {
    pub name: String,
    pub agent: Option<String>,
    pub expires_at: Time,
    /// The incarnation's key, or `None` until it is opened.
    key: Option<i64>,
    ttl: Millis,
    /// The run exists and has no agent yet: this claim sets it.
    names_agent: bool,
    /// The run's lease, if it is longer than the requested one.
    lease_kept: Option<Millis>,
}

impl Holder {
    /// The caller's run as the transaction read it.
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

    /// Locks the run's row, so that the run cannot be ended while a claim is being made. Otherwise the ending would
    /// not see the claim, and an ended run would hold the item for ever. A new run is opened here.
    pub fn enter(&self, now: Time) -> Stmt {
        match self.key {
            // A run is a session of one agent: the first agent named is kept.
            Some(key) if self.names_agent => Stmt::write(
                "update run set agent = ?3
                 where key = ?1 and ended_at is null and expires_at > ?2 and agent is null returning key",
                params![key, now, self.agent.as_deref()],
            ),
            Some(key) => Stmt::lock(
                "select key from run where key = ?1 and ended_at is null and expires_at > ?2 for key share",
                params![key, now],
            ),
            // Two first claims under one name at the same time: the second waits here, finds the first one's run,
            // and starts over to join it. An upsert could revive a row whose lease expired.
            None => Stmt::write(
                "insert into run(name, agent, ttl_ms, opened_at, expires_at) values (?1, ?2, ?3, ?4, ?5)
                 on conflict (name) where ended_at is null do nothing returning key",
                params![&self.name, self.agent.as_deref(), self.ttl, now, self.expires_at],
            ),
        }
    }

    /// A lock for which other claims wait that take it, too, with the run's key. `None` for a new run: of two claims that open it
    /// at the same time one starts over.
    pub fn exclusive(&self) -> Option<(i64, Stmt)> {
        let key = self.key?;
        Some((key, Stmt::lock("select key from run where key = ?1 for no key update", params![key])))
    }

    /// The hold of a new claim.
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

    /// The run did not exist: [`Self::enter`] opens it.
    pub fn is_new(&self) -> bool {
        self.key.is_none()
    }

    /// The run's lease, if it is longer than the requested one.
    pub fn lease_kept(&self) -> Option<Millis> {
        self.lease_kept
    }

    /// The run's key, from the answer to [`Self::enter`].
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
