//! Renewing a claim while a command runs, and noticing its end. When to renew is decided in `fencepost_client::renewal`.

use super::rule::Event;
use crate::location::DatabaseFile;
use fencepost::{
    Code, Error, Millis, Op, Result,
    claim::{self, Claim},
    run,
};
use fencepost_client::{
    Connection,
    claims::{self, is_same},
    renewal::{self, ConfirmedLease, Renewal, Ticks, Verdict},
};
use std::time::Duration;
use tokio::sync::mpsc;

/// How often to check that the claim is still ours. A renewal would tell, too, but it comes only after a third of the lease, and
/// a command whose task was cancelled should not run for so long. The check is a read (in a debug build 64 µs on SQLite, 1 ms on
/// PostgreSQL), so a thousand guarded commands cost at most one core of the database.
const CHECK: Millis = Millis::seconds(1);
/// The longest that a check may take, however long the lease is.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// How often to renew the run of a claim that is finished.
const RENEWED: Millis = Millis::seconds(2);

/// Renews a claim while a command runs under it.
#[derive(Debug, Clone)]
pub struct LeaseRenewer {
    connection: Connection,
    database_file: Option<DatabaseFile>,
    claim: Claim,
    /// Other claims of the same run that the same command works under.
    others: Vec<Claim>,
    given_back: GivenBack,
    /// The length of the lease that a renewal asks for; `None`: as it is.
    ttl: Option<Millis>,
    /// The same, once the command has started.
    after_start: Option<Millis>,
}

/// How to treat a command that gave its claim back by `fail --retry`, `accept` or `reject`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GivenBack {
    /// The claim is lost: others may claim the item at once.
    Lost,
    /// The command may go on until somebody else claims the item.
    Finished,
}

impl LeaseRenewer {
    /// The database file must be the one from before the connection was opened: it may have been replaced in between.
    pub fn new(connection: &Connection, database_file: Option<DatabaseFile>, claim: Claim) -> Self {
        Self {
            connection: connection.clone(),
            database_file,
            claim,
            others: Vec::new(),
            given_back: GivenBack::Lost,
            ttl: None,
            after_start: None,
        }
    }

    /// Adds claims of the same run. If one of them is lost, all count as lost.
    #[must_use]
    pub fn and(self, others: Vec<Claim>) -> Self {
        Self { others, ..self }
    }

    /// Lets the command end in its own time after it gave its claims back itself, until somebody else claims one of the items.
    #[must_use]
    pub fn until_others_claim(self) -> Self {
        Self { given_back: GivenBack::Finished, ..self }
    }

    /// Lengthens the lease to this as soon as the command has started. Until then it keeps the length of its claim.
    #[must_use]
    pub fn lengthened_after_start(self, ttl: Millis) -> Self {
        Self { after_start: Some(ttl), ..self }
    }

    /// For a command that has started.
    #[must_use]
    pub fn started(self) -> Self {
        Self { ttl: self.after_start, ..self }
    }

    pub fn first(&self) -> &Claim {
        &self.claim
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
        let sent = renewal::now();
        match self.call(limit, claim::Renew { ttl_ms: self.ttl, ..claim::Renew::new(&claim.token) }).await {
            Ok(renewed) if !is_same(&renewed.claim, claim) => Event::Lost(self.replaced()),
            Ok(renewed) => Event::Renewed(ConfirmedLease { sent, left: renewed.lease_ms }),
            Err(error) => self.classify(&claim.token, error),
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
            Err(error) => Some(self.classify(self.token(), error)),
        }
    }

    /// Checks several claims with one call. Claims that are not in the reply are renewed one by one.
    async fn check_all(&self, limit: Duration) -> Option<Event> {
        let listed = match self.call(limit, claims::list(&self.claim.run)).await {
            Ok(listed) => listed.claims,
            Err(error) => return Some(self.classify(self.token(), error)),
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

    /// Does something that is no command, and renews the claims meanwhile. If they are lost, it is dropped.
    pub async fn while_held<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let lease = match self.renew(CHECK_TIMEOUT).await {
            Event::Renewed(lease) => Some(lease),
            Event::Lost(error) => return Err(over(&error)),
            Event::NoAnswer(error) => return Err(error),
            // Its holder finished it, and the work is the rest.
            _ => None,
        };
        let (sender, mut changes) = mpsc::channel(1);
        let renewing = tokio::spawn(self.clone().run(lease, sender));
        tokio::pin!(work);
        let mut last = None;
        let done = loop {
            tokio::select! {
                done = &mut work => break Ok(done),
                change = changes.recv() => match change {
                    Some(Event::Lost(error)) => break Err(over(&error)),
                    Some(Event::NoAnswer(error)) => last = Some(error),
                    Some(_) => last = None,
                    // The lease ended without an answer.
                    None => match last.take() {
                        Some(error) => break Err(over(&error)),
                        None => break Ok(work.await),
                    },
                },
            }
        };
        renewing.abort();
        done
    }

    /// Renews and checks until the claim is lost or the receiver is gone. It goes on after the claim is finished (then there is no
    /// lease at first): somebody can retry a task that failed.
    pub async fn run(self, first: Option<ConfirmedLease>, changes: mpsc::Sender<Event>) {
        if let Some(first) = first {
            let Some(over) = self.renewals(first, &changes).await else { return };
            let finished = matches!(over, Event::Finished);
            let _ = changes.send(over).await;
            if !finished {
                return;
            }
        }
        let mut renewed = i64::MIN;
        while !changes.is_closed() {
            // The run that was made for this command lives as long as the command: it counts for the agent's limit, and others may
            // wait for its end.
            if self.given_back == GivenBack::Finished && renewal::now().saturating_sub(renewed) >= RENEWED.0 {
                renewed = renewal::now();
                let renew = run::Renew { run: self.claim.run.clone(), ttl_ms: None };
                // It may have been settled.
                let _ = self.call(CHECK_TIMEOUT, renew).await;
            }
            renewal::sleep_until(next_check()).await;
            if let Some(lost @ Event::Lost(_)) = self.check(CHECK_TIMEOUT).await {
                let _ = changes.send(lost).await;
                return;
            }
        }
    }

    /// The verbs by which the holder ended these claims; `None` if it holds one of them still, or lost one.
    pub async fn verbs(&self) -> Result<Option<Vec<String>>> {
        let mut verbs = Vec::new();
        for claim in self.claims() {
            match self.call(CHECK_TIMEOUT, claim::Renew::new(&claim.token)).await {
                Ok(_) => return Ok(None),
                Err(error) if error.ends_claim() && is_by_holder(ended_by(&error)) => {
                    verbs.push(ended_by(&error).to_owned());
                }
                Err(error) if error.ends_claim() => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(verbs))
    }

    /// Renews and checks while the claim is held, and returns the event after which it is not; `None` if the receiver is gone.
    async fn renewals(&self, first: ConfirmedLease, changes: &mpsc::Sender<Event>) -> Option<Event> {
        let mut renewal = Renewal::new(self.ttl.map_or(first.left, |ttl| ttl.max(first.left)));
        renewal.renewed(first);
        let mut unanswered = false;
        let mut is_short = self.ttl.is_some_and(|ttl| ttl > first.left);
        loop {
            let checked = match (unanswered, std::mem::take(&mut is_short)) {
                // It is lengthened at once.
                (false, true) => None,
                (false, false) => self.checks(&renewal).await,
                // Only a renewal helps now.
                (true, _) => {
                    renewal::sleep_until(renewal.next_at()).await;
                    None
                }
            };
            let event = match checked {
                Some(event) => event,
                None => self.renew(renewal.limit(renewal::now())).await,
            };
            unanswered = matches!(event, Event::NoAnswer(_));
            match &event {
                Event::Renewed(lease) => renewal.renewed(*lease),
                Event::NoAnswer(_) if renewal.unanswered(renewal::now()) == Verdict::Held => {}
                _ => return Some(event),
            }
            changes.send(event).await.ok()?;
        }
    }

    /// Checks until the claim is due for renewal, or something happens to it.
    async fn checks(&self, renewal: &Renewal) -> Option<Event> {
        while renewal::now() < renewal.next_at() {
            renewal::sleep_until(next_check().min(renewal.next_at())).await;
            if let Some(event) = self.check(renewal.check_limit().min(CHECK_TIMEOUT)).await {
                return Some(event);
            }
        }
        None
    }

    /// The reply of the fleet, if the fleet is still the same.
    async fn call<O: Op>(&self, limit: Duration, op: O) -> Result<O::Reply> {
        let answer = renewal::within(limit, self.connection.call(op)).await;
        match &self.database_file {
            Some(file) if !file.is_in_place() => Err(self.replaced()),
            _ => answer,
        }
    }

    /// The effect of an error on a claim.
    fn classify(&self, token: &str, error: Error) -> Event {
        match error {
            error if is_finished(&error) => Event::Finished,
            error if self.given_back == GivenBack::Finished && was_given_back(&error) => Event::Finished,
            error if error.code() == Code::LeaseExpired && ended_by(&error) == "unclaim" => Event::Lost(
                Error::new(Code::LeaseExpired, format!("claim `{token}` was taken away by an operator"))
                    .hint("fence events says by whom and why"),
            ),
            error if error.ends_claim() => Event::Lost(error),
            error => Event::NoAnswer(error),
        }
    }

    fn replaced(&self) -> Error {
        let token = self.token();
        Error::new(Code::NotFound, format!("claim `{token}` is over: its fleet was removed or replaced"))
            .hint("fence doctor checks the fleet that exists now")
    }
}

/// A claim that is not found is over, too.
fn over(error: &Error) -> Error {
    Error::new(Code::LeaseExpired, error.message())
}

fn next_check() -> Ticks {
    renewal::now() + CHECK.0
}

/// The holder finished the claim for good. After other verbs (`verdict`, `release`, `fail --retry`, `reject`, any lock) somebody else can
/// claim the item at once.
pub fn is_finished(error: &Error) -> bool {
    error.code() == Code::AlreadyFinished && matches!(ended_by(error), "done" | "fail")
}

/// The holder gave the claim back itself, and nobody has claimed the item since.
fn was_given_back(error: &Error) -> bool {
    // Not `release`: an operator who pauses the agent with --now releases its work, too.
    let by_holder = is_by_holder(ended_by(error)) && ended_by(error) != "release";
    error.ends_claim() && by_holder && error.field("holder").is_none()
}

fn is_by_holder(verb: &str) -> bool {
    matches!(verb, "done" | "fail" | "release" | "accept" | "reject" | "verdict")
}

/// The verb that ended the claim.
fn ended_by(error: &Error) -> &str {
    error.field("ended_by").and_then(|verb| verb.as_str()).unwrap_or_default()
}
