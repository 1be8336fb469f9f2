//! Access: which caller may call which op, on which items. A key's secret is shown once; only its digest is stored.
//!
//! A key may call an op if its role is at least the op's `ACCESS`. An agent's key has a second limit: it acts only as
//! its agent, and only on its agent's runs and claims. The code that looks up a run or a token checks that.
//!
//! Some names belong to an agent or to the engine ([`Owner`]). Only the engine's own ops push into such a mailbox, so
//! that its messages and their senders can be trusted. Its owner and operators may take from it and manage it. An
//! operator has an admin's key, or calls without a key.

use crate::{
    caller::{Access, Caller, Key},
    db::{Row, Tx},
    error::{Code, Error, Result},
    ids::Owner,
};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

macro_rules! keys {
    ($rest:literal) => {
        concat!("select id, name, digest, role, agent, created_at, revoked_at from access_key ", $rest)
    };
}
pub(crate) use keys;

impl Key {
    pub fn read(row: &Row) -> Result<Self> {
        let role: String = row.get("role")?;
        Ok(Self {
            id: row.get("id")?,
            name: row.get("name")?,
            role: Access::parse(&role).ok_or_else(|| Error::internal(format!("a key has role `{role}`")))?,
            agent: row.get("agent")?,
            created_at: row.get("created_at")?,
            revoked_at: row.get("revoked_at")?,
        })
    }
}

/// The stored digest of a secret. A secret has 256 random bits, so one round of a fast hash is enough.
pub fn digest(secret: &str) -> String {
    hex(&Sha256::digest(secret))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The key with this secret, unless it was revoked. The index finds it by its digest, so timing shows nothing about
/// similar secrets; the found digest is compared in constant time all the same.
pub(crate) async fn find(tx: &mut Tx<'_>, secret: &str) -> Result<Option<Key>> {
    let digest = digest(secret);
    let rows = tx.query(keys!("where digest = ?1 and revoked_at is null"), crate::params![&digest]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let stored: String = row.get("digest")?;
    if bool::from(stored.as_bytes().ct_eq(digest.as_bytes())) { Key::read(row).map(Some) } else { Ok(None) }
}

/// The digests of at most this many keys that were not revoked.
pub(crate) async fn live(tx: &mut Tx<'_>, limit: i64) -> Result<Vec<String>> {
    // Only the index on names has no revoked keys.
    let sql = "select digest from access_key where revoked_at is null order by name limit ?1";
    tx.query(sql, crate::params![limit]).await?.iter().map(|row| row.get("digest")).collect()
}

/// The fleet has a key, or once had one.
pub(crate) async fn is_keyed(tx: &mut Tx<'_>) -> Result<bool> {
    let rows = tx.query("select keyed from fleet", crate::params![]).await?;
    Ok(rows[0].get::<i64>("keyed")? == 1)
}

/// Refuses a caller that lost its access since the call began: its key was revoked, or it has none and the fleet now
/// asks for one.
pub(crate) async fn check_admitted(tx: &mut Tx<'_>) -> Result<()> {
    if let Some(key) = tx.caller.key.clone() {
        let sql = "select 1 as held from access_key where id = ?1 and revoked_at is null";
        let is_held = !tx.query(sql, crate::params![key.id]).await?.is_empty();
        return if is_held { Ok(()) } else { Err(unknown_key()) };
    }
    if tx.caller.is_guest && is_keyed(tx).await? { Err(key_needed()) } else { Ok(()) }
}

/// The refusal of a caller without a key, where one is required.
pub fn key_needed() -> Error {
    Error::new(Code::Unauthorized, "a key is needed to call this fleet")
        .hint("set FENCE_KEY, or send Authorization: Bearer …; an admin makes one: fence key add NAME")
}

/// The refusal of a key that does not exist or was revoked.
pub fn unknown_key() -> Error {
    Error::new(Code::Unauthorized, "this key is not known here, or was revoked")
        .hint("fence key list shows those there are; an admin makes one: fence key add NAME")
}

impl Caller {
    /// May this caller call an op that requires this role?
    pub(crate) fn may(&self, what: &str, access: Access) -> Result<()> {
        match &self.key {
            Some(key) if key.role < access => {
                let message = format!(
                    "key `{}` has the role {}, and {what} needs {}",
                    key.name,
                    key.role.as_str(),
                    access.as_str()
                );
                Err(Error::new(Code::Forbidden, message).hint(format!(
                    "an admin can add a key for it: fence key add NAME --role {}",
                    access.as_str()
                )))
            }
            _ => Ok(()),
        }
    }

    /// The agent of the caller's key, if it is an agent's key.
    pub(crate) fn key_agent(&self) -> Option<&str> {
        self.agent_key().map(|(_, agent)| agent)
    }

    /// The name of the caller's key and the agent that it acts as, if it is an agent's key.
    fn agent_key(&self) -> Option<(&str, &str)> {
        let key = self.key.as_ref().filter(|key| key.role == Access::Agent)?;
        // An agent's key without an agent acts as nobody: the empty name fits none of the rules below.
        Some((&key.name, key.agent.as_deref().unwrap_or_default()))
    }

    /// The agent that the caller acts as: that of its key, or else the given one. With an agent's key, another agent is
    /// refused.
    pub(crate) fn acting_as(&self, field: &str, given: Option<&str>) -> Result<Option<String>> {
        match (self.agent_key(), given) {
            (Some((key, own)), Some(given)) if given != own => {
                Err(not_for(key, own, &format!("`{given}` is another agent")).with("field", field))
            }
            (Some((_, own)), _) => Ok(Some(own.to_owned())),
            (None, given) => Ok(given.map(str::to_owned)),
        }
    }

    /// May the caller end this run, or act on its claims? With an agent's key only if the run is that agent's.
    pub(crate) fn may_use(&self, run: &str, agent: Option<&str>) -> Result<()> {
        match self.agent_key() {
            Some((key, own)) if agent != Some(own) => {
                let Some(agent) = agent else {
                    let problem = format!("run `{run}` was begun without an agent");
                    return Err(not_for(key, own, &problem).hint(format!(
                        "--run NAME or FENCE_RUN begins a run of {own}'s own; an admin's key can use this one"
                    )));
                };
                Err(not_for(key, own, &format!("run `{run}` belongs to agent `{agent}`")))
            }
            _ => Ok(()),
        }
    }

    /// May the caller push into this mailbox by its name? If the engine's own ops fill it, not even an operator may.
    pub(crate) fn may_push(&self, field: &str, mailbox: &str) -> Result<()> {
        let (filled_by, hint) = match Owner::of_mailbox(mailbox) {
            Owner::Anyone => return Ok(()),
            Owner::Agent(agent) => ("inbox/send", format!("fence inbox send {agent} TEXT")),
            Owner::Engine if mailbox.starts_with("outbox/") => {
                ("inbox/respond", "fence inbox respond MESSAGE TEXT queues an answer there".into())
            }
            Owner::Engine => ("the fleet itself", "choose another name for a mailbox of your own".into()),
        };
        let message = format!("mailbox `{mailbox}` is filled by {filled_by} only");
        Err(Error::new(Code::Forbidden, message).with("field", field).hint(hint))
    }

    /// May the caller take from this mailbox, for this agent if one is given?
    pub(crate) fn may_take(&self, mailbox: &str, agent: Option<&str>) -> Result<()> {
        match (Owner::of_mailbox(mailbox), agent) {
            (Owner::Agent(owner), Some(agent)) if owner != agent => {
                let message =
                    format!("mailbox `{mailbox}` is the inbox of agent `{owner}`, not of `{agent}`");
                Err(Error::new(Code::Forbidden, message)
                    .with("field", "mailboxes")
                    .with("agent", owner)
                    .hint(format!(
                        "fence inbox list {owner} shows it; fence inbox list {agent} shows your own"
                    )))
            }
            _ => self.may_manage(mailbox),
        }
    }

    /// May the caller configure this mailbox, and change its messages?
    pub(crate) fn may_manage(&self, mailbox: &str) -> Result<()> {
        match Owner::of_mailbox(mailbox) {
            Owner::Anyone => Ok(()),
            Owner::Agent(agent) => self.acting_as("mailbox", Some(agent)).map(drop),
            Owner::Engine => self.may_use_name(&format!("mailbox `{mailbox}`"), Owner::Engine),
        }
    }

    /// May the caller use a lock or a run of this name?
    pub(crate) fn may_use_name(&self, what: &str, owner: Owner<'_>) -> Result<()> {
        match (owner, self.agent_key()) {
            (Owner::Engine, Some((key, own))) => {
                let message = format!("key `{key}` is for agent `{own}`: {what} belongs to the fleet itself");
                Err(Error::new(Code::Forbidden, message)
                    .with("agent", own)
                    .hint("choose another name, or use an admin's key to repair it"))
            }
            _ => Ok(()),
        }
    }
}

fn not_for(key: &str, own: &str, problem: &str) -> Error {
    Error::new(Code::Forbidden, format!("key `{key}` is for agent `{own}`: {problem}"))
        .with("agent", own)
        .hint("use that agent's own key, or an admin's")
}
