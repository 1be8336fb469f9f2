//! Renewing a claim, and noticing its end.

use super::{
    rule::{Event, Lease, Ticks},
    span, ticks,
};
use crate::location::DatabaseFile;
use fencepost::{
    Code, Error, Millis, Op, Result,
    claim::{self, Claim},
};
use fencepost_client::{
    Connection,
    claims::{self, is_same},
};
use std::time::Duration;
use tokio::sync::mpsc;

/// How often to check that the claim is still ours. A renewal would tell, too, but it comes only after a third of the lease, and
/// a command whose task was cancelled should not run for so long. The check is a read (in a debug build 64 µs on SQLite, 1 ms on
/// PostgreSQL), so a thousand guarded commands cost at most one core of the database.
const CHECK: Duration = Duration::from_secs(1);

/// The timeout of a check. After it, a renewal is tried, which matters more.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// The least time between two renewals.
const RENEW_PAUSE: Duration = Duration::from_millis(100);

/// The verbs with which a holder finishes its claim for good. After other verbs (`release`, `fail --retry`, `reject`, any lock)
/// somebody else can claim the item at once.
const FINISH: [&str; 2] = ["done", "fail"];

/// Renews a claim while a command runs under it.
#[derive(Debug, Clone)]
pub struct LeaseRenewer {
    connection: Connection,
    database_file: Option<DatabaseFile>,
    claim: Claim,
    /// Other claims of the same run that the same command works under.
    others: Vec<Claim>,
}

impl LeaseRenewer {
    /// The database file must be the one from before the connection was opened: it may have been replaced in between.
    pub fn new(connection: &Connection, database_file: Option<DatabaseFile>, claim: Claim) -> Self {
        Self { connection: connection.clone(), database_file, claim, others: Vec::new() }
    }

    /// Adds claims of the same run. If one of them is lost, all count as lost.
    #[must_use]
    pub fn and(self, others: Vec<Claim>) -> Self {
        Self { others, ..self }
    }

    pub fn token(&self) -> &str {
        &self.claim.token
    }

    fn claims(&self) -> impl Iterator<Item = &Claim> {
        std::iter::once(&self.claim).chain(&self.others)
    }

    /// Renews the lease of the run, by the first claim that is not finished.
    pub async fn renew(&self, limit: Duration) -> Event {
        for claim in self.claims() {
            match self.renew_one(claim, limit).await {
                Event::Finished => {}
                event => return event,
            }
        }
        Event::Finished
    }

    async fn renew_one(&self, claim: &Claim, limit: Duration) -> Event {
        // Read before the request is sent: the lease may begin at any moment after that.
        let asked: Ticks = ticks();
        match self.call(limit, claim::Renew::new(&claim.token)).await {
            Ok(renewed) if !is_same(&renewed.claim, claim) => Event::Lost(self.replaced()),
            Ok(renewed) => Event::Renewed(Lease { asked, left: renewed.lease_ms }),
            Err(error) => classify(&claim.token, error),
        }
    }

    /// Checks that the claim is still ours; `None` if it is.
    pub async fn check(&self, limit: Duration) -> Option<Event> {
        if !self.others.is_empty() {
            return self.check_all(limit).await;
        }
        match self.call(limit, claim::Guard::new(self.token())).await {
            Ok(guarded)
                if guarded.ok && guarded.claim.as_ref().is_some_and(|claim| is_same(claim, &self.claim)) =>
            {
                None
            }
            // The refusal of a renewal has more detail.
            Ok(_) => Some(self.renew(limit).await),
            Err(error) => Some(classify(self.token(), error)),
        }
    }

    /// Checks several claims with one call. Claims that are not in the reply are renewed one by one.
    async fn check_all(&self, limit: Duration) -> Option<Event> {
        let listed = match self.call(limit, claims::list(&self.claim.run)).await {
            Ok(listed) => listed.claims,
            Err(error) => return Some(classify(self.token(), error)),
        };
        let unlisted = claims::unlisted(self.claims(), &listed);
        let mut all_finished = unlisted.len() == self.claims().count();
        for claim in unlisted {
            match self.renew_one(claim, limit).await {
                Event::Renewed(_) => all_finished = false,
                Event::Finished => {}
                event => return Some(event),
            }
        }
        all_finished.then_some(Event::Finished)
    }

    /// Renews and checks until the claim is lost or the receiver is gone. It goes on after the claim is finished: somebody can
    /// retry a task that failed.
    pub async fn run(self, first: Lease, changes: mpsc::Sender<Event>) {
        let mut lease = first;
        loop {
            // A claim with a maximum has less and less of its lease left. This avoids a storm of renewals at its end.
            let third = span(lease.left.0.min(first.left.0) / 3).max(RENEW_PAUSE);
            let renew_at = lease.asked.saturating_add(Millis::from(third).0);
            let event = match self.checks(renew_at, third).await {
                Some(event @ Event::NoAnswer(_)) => {
                    let _ = changes.send(event).await;
                    self.renew(timeout(lease)).await
                }
                Some(event) => event,
                None => self.renew(timeout(lease)).await,
            };
            let mut pause = Duration::ZERO;
            match &event {
                Event::Renewed(kept) => lease = *kept,
                Event::NoAnswer(_) => pause = CHECK.min(third / 4),
                Event::Finished => pause = CHECK,
                _ => {
                    let _ = changes.send(event).await;
                    return;
                }
            }
            if changes.send(event).await.is_err() {
                return;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Checks until the claim is due for renewal, or something happens to it.
    async fn checks(&self, renew_at: Ticks, third: Duration) -> Option<Event> {
        loop {
            let left = renew_at - ticks();
            if left <= 0 {
                return None;
            }
            // Real time: the command is a real process.
            tokio::time::sleep(CHECK.min(span(left))).await;
            if let Some(event) = self.check((third / 4).min(CHECK_TIMEOUT)).await {
                return Some(event);
            }
        }
    }

    /// The reply of the fleet, if the fleet is still the same.
    async fn call<O: Op>(&self, limit: Duration, op: O) -> Result<O::Reply> {
        let late = |_| Error::unavailable(format!("the database did not answer in {limit:?}"));
        let answer = tokio::time::timeout(limit, self.connection.call(op)).await.map_err(late);
        match &self.database_file {
            Some(file) if !file.is_in_place() => Err(self.replaced()),
            _ => answer?,
        }
    }

    fn replaced(&self) -> Error {
        let token = self.token();
        Error::new(Code::NotFound, format!("claim `{token}` is over: its fleet was removed or replaced"))
            .hint("fence doctor checks the fleet that exists now")
    }
}

/// What an error means for a claim.
fn classify(token: &str, error: Error) -> Event {
    let by = error.field("ended_by").and_then(|verb| verb.as_str()).unwrap_or_default();
    match error.code() {
        Code::AlreadyFinished if FINISH.contains(&by) => Event::Finished,
        Code::LeaseExpired if by == "unclaim" => Event::Lost(
            Error::new(Code::LeaseExpired, format!("claim `{token}` was taken away by an operator"))
                .hint("fence events says by whom and why"),
        ),
        Code::LeaseExpired | Code::AlreadyFinished | Code::Cancelled | Code::NotFound => Event::Lost(error),
        _ => Event::NoAnswer(error),
    }
}

/// The timeout of a renewal: a fifth of the lease. A renewal starts after a third, so it fails before the command has to be
/// stopped, and on a lease of 60 s there is time for a second try.
fn timeout(lease: Lease) -> Duration {
    span(lease.left.0 / 5)
}
