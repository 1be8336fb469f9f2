//! Holds: the claim on an item's row, its run, and whether a token is still valid.

use crate::{
    clock::{Millis, Time},
    db::{Batch, Row, Scope, Stmt, Tx},
    error::{Code, Error, Result},
    ids::{Resource, Token},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A live claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Claim {
    /// Every write under the claim needs this token.
    pub token: String,
    pub resource: String,
    pub fence: i64,
    pub run: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    pub claimed_at: Time,
    /// The claim expires at this time if its run is not renewed.
    pub expires_at: Time,
    /// The end of the claim's own time (`max_ms`), which a renewal does not extend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_at: Option<Time>,
    /// The run's lease, if it is longer than the requested `ttl_ms`: a lease never becomes shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_kept_ms: Option<Millis>,
    /// Since when the holder waits for a person. Only `claim/list` shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_at: Option<Time>,
}

/// The claim columns of an item's row, with the claim's run: alive, lapsed or ended.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub run_key: i64,
    pub run: String,
    pub agent: Option<String>,
    pub run_expires_at: Time,
    pub run_ended_at: Option<Time>,
    pub fence: i64,
    pub claimed_at: Time,
    pub until: Option<Time>,
    /// The run's lease, if the current call requested a shorter one.
    pub lease_kept: Option<Millis>,
}

impl Hold {
    /// Reads `run.key as run_key, run.name as run_name, …` and the item's own columns.
    pub fn read(row: &mut Row) -> Result<Option<Self>> {
        let Some(run_key) = row.take::<Option<i64>>("run_key")? else { return Ok(None) };
        Ok(Some(Self {
            run_key,
            run: row.take("run_name")?,
            agent: row.take("run_agent")?,
            run_expires_at: row.take("run_expires_at")?,
            run_ended_at: row.take("run_ended_at")?,
            fence: row.get("fence")?,
            claimed_at: row.get("claimed_at")?,
            until: row.take("until_at")?,
            lease_kept: None,
        }))
    }
    pub fn is_alive(&self, now: Time) -> bool {
        self.run_ended_at.is_none() && self.run_expires_at > now && self.until.is_none_or(|until| until > now)
    }
    pub fn expires_at(&self) -> Time {
        self.until.map_or(self.run_expires_at, |until| until.min(self.run_expires_at))
    }
    pub fn token(&self, resource: &Resource) -> Token {
        Token { resource: resource.clone(), fence: self.fence }
    }
    pub fn claim(&self, resource: &Resource) -> Claim {
        Claim {
            token: self.token(resource).to_string(),
            resource: resource.to_string(),
            fence: self.fence,
            run: self.run.clone(),
            agent: self.agent.clone(),
            claimed_at: self.claimed_at,
            expires_at: self.expires_at(),
            limit_at: self.until,
            lease_kept_ms: self.lease_kept,
            waiting_at: None,
        }
    }
    /// The reason why the claim is over.
    pub fn lost(&self, now: Time) -> &'static str {
        match self.run_ended_at {
            _ if self.until.is_some_and(|until| until <= now) => "its time was up",
            Some(ended) if ended < self.run_expires_at => "its run ended",
            _ => "its lease was over",
        }
    }
    /// For the tables of cases beside the rules.
    #[cfg(test)]
    pub fn sample(run: &str, fence: i64, expires_at: Time) -> Self {
        Self {
            run_key: 1,
            run: run.into(),
            agent: None,
            run_expires_at: expires_at,
            run_ended_at: None,
            fence,
            claimed_at: Time(0),
            until: None,
            lease_kept: None,
        }
    }
    /// `run `r-7f` (agent codex-2) until 12:04:10`
    pub fn describe(&self) -> String {
        let agent = self.agent.as_ref().map_or(String::new(), |agent| format!(" (agent {agent})"));
        format!("run `{}`{agent} until {}", self.run, self.expires_at())
    }
}

/// How an item's last claim ended, to recognise a repeat of that call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Last {
    pub fence: i64,
    pub verb: String,
    pub digest: String,
}

/// The verbs by which a holder ends its own claim. Every other verb takes the claim away from its holder.
pub(crate) const ENDED_BY_HOLDER: [&str; 6] = ["done", "fail", "release", "accept", "reject", "verdict"];

impl Last {
    pub fn new(fence: i64, verb: &str, content: &[Option<&str>]) -> Self {
        let mut hash = Sha256::new();
        for part in content {
            // Lengths keep ("a", "b") and ("ab", "") apart.
            hash.update(part.map_or(u64::MAX, |part| part.len() as u64).to_be_bytes());
            hash.update(part.unwrap_or_default());
        }
        let mut first = [0; 8];
        first.copy_from_slice(&hash.finalize()[..8]);
        let digest = format!("{:016x}", u64::from_be_bytes(first));
        Self { fence, verb: verb.into(), digest }
    }
    pub fn read(row: &mut Row) -> Result<Option<Self>> {
        let Some(fence) = row.take::<Option<i64>>("last_fence")? else { return Ok(None) };
        Ok(Some(Self { fence, verb: row.take("last_verb")?, digest: row.take("last_digest")? }))
    }
}

/// The claim state of an item.
#[derive(Debug)]
pub(crate) struct ClaimState {
    pub fence: i64,
    pub hold: Option<Hold>,
    pub closed: Option<Closed>,
    pub last: Option<Last>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    Finished,
    Cancelled,
}

/// Whether a token may still be used: the answer of a guard, and the reason of every refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Ok,
    AlreadyClaimed,
    AlreadyFinished,
    LeaseExpired,
    Cancelled,
    NotFound,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::AlreadyClaimed => "already_claimed",
            Verdict::AlreadyFinished => "already_finished",
            Verdict::LeaseExpired => "lease_expired",
            Verdict::Cancelled => "cancelled",
            Verdict::NotFound => "not_found",
        }
    }
}

pub(crate) fn verdict(state: Option<&ClaimState>, fence: i64, now: Time) -> Verdict {
    let Some(state) = state else { return Verdict::NotFound };
    let alive = state.hold.as_ref().filter(|hold| hold.is_alive(now));
    match (state.closed, alive) {
        // This fence was never issued.
        _ if fence > state.fence => Verdict::NotFound,
        (Some(Closed::Cancelled), _) => Verdict::Cancelled,
        (Some(Closed::Finished), _) => Verdict::AlreadyFinished,
        (None, Some(hold)) if hold.fence == fence => Verdict::Ok,
        (None, Some(_)) => Verdict::AlreadyClaimed,
        (None, None) => Verdict::LeaseExpired,
    }
}

/// The living claim of a token, or the refusal of every verb under a claim.
pub(crate) fn require<'s>(state: Option<&'s ClaimState>, token: &Token, now: Time) -> Result<&'s Hold> {
    let verdict = verdict(state, token.fence, now);
    let hold = state.and_then(|state| state.hold.as_ref());
    let ended = state.and_then(|state| state.last.as_ref());
    let last = ended.filter(|last| last.fence == token.fence);
    let refused = match (verdict, hold) {
        (Verdict::Ok, Some(hold)) => return Ok(hold),
        (Verdict::NotFound, _) => {
            return Err(Error::new(Code::NotFound, format!("`{token}` was never issued"))
                .hint("copy the whole token that the claim printed, with its fence"));
        }
        (Verdict::AlreadyFinished, _) => {
            let resource = &token.resource;
            let later = ended.filter(|last| last.fence > token.fence);
            let under =
                later.map_or(String::new(), |last| format!(", under claim `{resource}@{}`", last.fence));
            Error::new(Code::AlreadyFinished, format!("`{resource}` is already finished{under}"))
        }
        (Verdict::Cancelled, _) => Error::new(Code::Cancelled, format!("`{}` was cancelled", token.resource)),
        (Verdict::AlreadyClaimed, Some(hold)) => {
            let message = format!("claim `{token}` is over; it is now held by {}", hold.describe());
            Error::new(Code::LeaseExpired, message)
                .with("holder", &hold.run)
                .with("holder_fence", hold.fence)
                .with("expires_at", hold.expires_at())
        }
        _ => Error::new(
            Code::LeaseExpired,
            format!("claim `{token}` is over: its lease ended or it was given back"),
        ),
    };
    // A process that keeps a claim alive must tell its own completion from a loss.
    let refused = match last {
        Some(last) => refused.with("ended_by", &last.verb),
        None => refused,
    };
    Err(refused
        .with("fence", token.fence)
        .hint("stop: work under this claim is not accepted; fence claim takes something else"))
}

/// The authority of a write to an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Under {
    /// No claim is used.
    NoClaim,
    /// A claim is made: its run must be alive in the statement that writes.
    NewClaim,
    /// A claim is used: it must be alive in the statement that writes.
    Claim,
}

impl Under {
    /// As a parameter of writing statements: 0, 1, 2.
    pub fn number(self) -> i64 {
        match self {
            Under::NoClaim => 0,
            Under::NewClaim => 1,
            Under::Claim => 2,
        }
    }
}

/// Whether the claim was already ended by the same verb with the same content. Then the first result is kept. In an
/// embedder's transaction a repeat is an error, so that its own writes are not committed twice.
pub(crate) fn is_repeat(
    tx: &Tx<'_>,
    last: Option<&Last>,
    token: &Token,
    verb: &str,
    content: &[Option<&str>],
) -> Result<bool> {
    let Some(last) = last.filter(|last| last.fence == token.fence) else { return Ok(false) };
    if *last != Last::new(token.fence, verb, content) {
        let ends = ["done", "fail", "release", "verdict"];
        if !ends.contains(&last.verb.as_str()) {
            return Ok(false);
        }
        let message = format!("claim `{token}` was already ended by `{}` with different content", last.verb);
        return Err(Error::new(Code::AlreadyFinished, message)
            .with("fence", last.fence)
            .with("ended_by", &last.verb)
            .hint("the first result is kept"));
    }
    if tx.opening.scope == Scope::Embedded {
        return Err(Error::new(Code::AlreadyFinished, format!("`{token}` was accepted before"))
            .with("repeat", true)
            .with("fence", last.fence)
            .hint("roll back: the first completion already committed these writes"));
    }
    Ok(true)
}

/// In an embedder's transaction a repeat fails the whole batch, too: its rows were written the first time.
pub(crate) fn refuse_embedded_repeat<'e>(
    tx: &Tx<'_>,
    mut refused: impl Iterator<Item = &'e Error>,
) -> Result<()> {
    let repeat = refused.find(|e| e.field("repeat") == Some(&serde_json::Value::Bool(true)));
    match repeat {
        Some(repeat) if tx.opening.scope == Scope::Embedded => Err(repeat.clone()),
        _ => Ok(()),
    }
}

/// The write itself checked the claim: if no row was written, the claim is over.
pub(crate) fn check_written(rows: u64, token: &Token) -> Result<()> {
    if rows == 1 {
        return Ok(());
    }
    Err(Error::new(Code::LeaseExpired, format!("claim `{token}` ended at this moment"))
        .with("fence", token.fence)
        .hint("stop: work under this claim is not accepted; fence claim takes something else"))
}

/// Writes rows and their events in one round trip. Returns the number of rows written: none, if the claim that the
/// write checks is over.
pub(crate) async fn write_logged(tx: &mut Tx<'_>, write: Stmt, events: Stmt) -> Result<u64> {
    let mut batch = Batch::new();
    let written = batch.add(write);
    batch.add(events);
    Ok(tx.send(batch).await?.affected(written))
}

/// The fence of a new claim: above every fence ever issued for this resource.
pub(crate) fn next_fence(tx: &Tx<'_>, fence: i64) -> i64 {
    fence.max(tx.opening.due.floor) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(fence: i64, alive: Option<i64>, closed: Option<Closed>) -> ClaimState {
        let hold = alive.map(|expires_at| Hold::sample("r", fence, Time(expires_at)));
        ClaimState { fence, hold, closed, last: None }
    }

    #[test]
    fn every_answer_of_a_guard() {
        use Closed::*;
        use Verdict as V;
        let cases = [
            (None, 1, V::NotFound),
            (Some(state(1, Some(10), None)), 1, V::Ok),
            (Some(state(1, Some(10), None)), 2, V::NotFound),
            (Some(state(2, Some(10), None)), 1, V::AlreadyClaimed),
            (Some(state(1, Some(5), None)), 1, V::LeaseExpired),
            (Some(state(1, None, None)), 1, V::LeaseExpired),
            (Some(state(1, None, Some(Finished))), 1, V::AlreadyFinished),
            (Some(state(3, None, Some(Finished))), 1, V::AlreadyFinished),
            (Some(state(1, None, Some(Cancelled))), 1, V::Cancelled),
        ];
        for (state, fence, expected) in cases {
            assert_eq!(verdict(state.as_ref(), fence, Time(5)), expected, "{state:?} @{fence}");
        }
    }

    #[test]
    fn digests_tell_contents_apart() {
        let digest = |parts: &[Option<&str>]| Last::new(1, "done", parts).digest;
        assert_ne!(digest(&[Some("a"), Some("b")]), digest(&[Some("ab"), Some("")]));
        assert_ne!(digest(&[None]), digest(&[Some("")]));
        assert_eq!(digest(&[Some("a")]), digest(&[Some("a")]));
    }
}
