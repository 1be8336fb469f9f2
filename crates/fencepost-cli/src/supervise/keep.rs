//! Keeping a claim alive, and learning of its end.

use super::{
    ask_the_clock,
    rule::{Event, Lease, Ticks},
    span,
};
use crate::place::Footing;
use fencepost::{
    Code, Error, Millis, Op, Result,
    claim::{self, Claim},
};
use fencepost_client::{
    Connection,
    held::{self, is_same},
};
use std::time::Duration;
use tokio::sync::mpsc;

/// How often it is asked whether the claim is still ours. A renewal would tell too, but only after a third of the
/// lease; a command whose task was cancelled should not work on for so long. It is a read (measured in a debug
/// build: 64 µs on SQLite, 1 ms on PostgreSQL), so a thousand guarded commands cost one core of the database at most.
const CHECK: Duration = Duration::from_secs(1);

/// How long a check may take. Past it a renewal is tried, which matters more.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two renewals.
const SOONEST: Duration = Duration::from_millis(100);

/// The verbs by which a holder itself finishes what it holds, so that nobody can claim it after. What was given back
/// (`release`, `fail --retry`, `reject`, any lock) is somebody else's to take at once.
const FINISH: [&str; 2] = ["done", "fail"];

/// A claim to be kept.
#[derive(Debug, Clone)]
pub struct Keep {
    connection: Connection,
    footing: Option<Footing>,
    claim: Claim,
    /// Claims of the same run that the same command works under.
    others: Vec<Claim>,
}

impl Keep {
    /// The footing is that from before the connection was opened: else another file may have come between.
    pub fn new(connection: &Connection, footing: Option<Footing>, claim: Claim) -> Self {
        Self { connection: connection.clone(), footing, claim, others: Vec::new() }
    }

    /// And these, of the same run: if one of them is lost, all count as lost.
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

    /// Asks for the whole lease anew. One that is not handed in yet speaks for the run.
    pub async fn renew(&self, limit: Duration) -> Event {
        for claim in self.claims() {
            match self.renew_one(claim, limit).await {
                Event::HandedIn => {}
                event => return event,
            }
        }
        Event::HandedIn
    }

    async fn renew_one(&self, claim: &Claim, limit: Duration) -> Event {
        // Before it is sent: the lease may have begun at any moment since.
        let asked: Ticks = ask_the_clock();
        match self.ask(limit, claim::Renew::new(&claim.token)).await {
            Ok(renewed) if !is_same(&renewed.claim, claim) => Event::Lost(self.elsewhere()),
            Ok(renewed) => Event::Kept(Lease { asked, left: renewed.lease_ms }),
            Err(error) => over(&claim.token, error),
        }
    }

    /// Asks whether it is still ours. `None`: it is.
    pub async fn check(&self, limit: Duration) -> Option<Event> {
        if !self.others.is_empty() {
            return self.check_all(limit).await;
        }
        match self.ask(limit, claim::Guard::new(self.token())).await {
            Ok(guarded)
                if guarded.ok && guarded.claim.as_ref().is_some_and(|claim| is_same(claim, &self.claim)) =>
            {
                None
            }
            // The refusal of a renewal says more.
            Ok(_) => Some(self.renew(limit).await),
            Err(error) => Some(over(self.token(), error)),
        }
    }

    /// The same of several, with one question. What is not in the answer is looked at by itself.
    async fn check_all(&self, limit: Duration) -> Option<Event> {
        let listed = match self.ask(limit, held::list(&self.claim.run)).await {
            Ok(listed) => listed.claims,
            Err(error) => return Some(over(self.token(), error)),
        };
        let unlisted = held::unlisted(self.claims(), &listed);
        let mut handed_in = unlisted.len() == self.claims().count();
        for claim in unlisted {
            match self.renew_one(claim, limit).await {
                Event::Kept(_) => handed_in = false,
                Event::HandedIn => {}
                event => return Some(event),
            }
        }
        handed_in.then_some(Event::HandedIn)
    }

    /// Until it is lost, or nobody listens. What was handed in is looked at, too: a task that failed can be retried.
    pub async fn run(self, first: Lease, news: mpsc::Sender<Event>) {
        let mut lease = first;
        loop {
            // A claim with a cap has ever less of its lease left, and needs no storm of renewals at its end.
            let third = span(lease.left.0.min(first.left.0) / 3).max(SOONEST);
            let renew_at = lease.asked.saturating_add(Millis::from(third).0);
            let event = match self.checks(renew_at, third).await {
                Some(event @ Event::Silent(_)) => {
                    let _ = news.send(event).await;
                    self.renew(limit(lease)).await
                }
                Some(event) => event,
                None => self.renew(limit(lease)).await,
            };
            let mut pause = Duration::ZERO;
            match &event {
                Event::Kept(kept) => lease = *kept,
                Event::Silent(_) => pause = CHECK.min(third / 4),
                Event::HandedIn => pause = CHECK,
                _ => {
                    let _ = news.send(event).await;
                    return;
                }
            }
            if news.send(event).await.is_err() {
                return;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Checks until the claim is to be renewed, or there is something to tell.
    async fn checks(&self, renew_at: Ticks, third: Duration) -> Option<Event> {
        loop {
            let left = renew_at - ask_the_clock();
            if left <= 0 {
                return None;
            }
            // Real time: what is supervised is a real process.
            tokio::time::sleep(CHECK.min(span(left))).await;
            if let Some(event) = self.check((third / 4).min(PATIENCE)).await {
                return Some(event);
            }
        }
    }

    /// What the fleet says, if it is still the fleet that others ask.
    async fn ask<O: Op>(&self, limit: Duration, op: O) -> Result<O::Reply> {
        let late = |_| Error::unavailable(format!("the database did not answer in {limit:?}"));
        let answer = tokio::time::timeout(limit, self.connection.call(op)).await.map_err(late);
        match &self.footing {
            Some(footing) if !footing.holds() => Err(self.elsewhere()),
            _ => answer?,
        }
    }

    fn elsewhere(&self) -> Error {
        let token = self.token();
        Error::new(Code::NotFound, format!("claim `{token}` is over: its fleet is gone, or was made anew"))
            .hint("fence doctor looks at the fleet that is there now")
    }
}

/// What an error says of a claim.
fn over(token: &str, error: Error) -> Event {
    let by = error.field("ended_by").and_then(|verb| verb.as_str()).unwrap_or_default();
    match error.code() {
        Code::AlreadyFinished if FINISH.contains(&by) => Event::HandedIn,
        Code::LeaseExpired if by == "unclaim" => Event::Lost(
            Error::new(Code::LeaseExpired, format!("claim `{token}` was taken away by an operator"))
                .hint("fence events says by whom and why"),
        ),
        Code::LeaseExpired | Code::AlreadyFinished | Code::Cancelled | Code::NotFound => Event::Lost(error),
        _ => Event::Silent(error),
    }
}

/// A fifth: renewed after a third, it has failed before the command must be told, and on a lease of 60 s there is
/// time for a second try.
fn limit(lease: Lease) -> Duration {
    span(lease.left.0 / 5)
}
