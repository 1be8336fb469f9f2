//! What a consumer has in hand: how much it is, keeping it alive, and learning that it is lost.

use super::Letter;
use crate::{Connection, again::Pauses};
use fencepost::{
    Code, Error, Op, Result, claim,
    mail::{self, claim::ClaimedMessage},
    run,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::watch,
    // Real time: a lease is counted from before it was asked for, on a clock that cannot be set. Whether it is over
    // is the fleet's to say.
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

/// Between two tries, if the database fails.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);

/// What a consumer does.
#[derive(Debug, Clone, PartialEq)]
pub enum Activity {
    /// There is nothing to take, or it has stopped.
    Idle,
    /// It has something to do, or may have.
    Busy,
    /// The database fails, and it tries again.
    Troubled(Error),
}

/// How a consumer is getting on.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub activity: Activity,
    /// Claimed, and neither finished nor given back.
    pub in_flight: usize,
}

impl Progress {
    /// Idle, and nothing in flight. Whatever is pending stays so.
    pub fn safe_to_restart(&self) -> bool {
        self.activity == Activity::Idle && self.in_flight == 0
    }
}

#[derive(Debug)]
pub(super) struct Hands {
    pub connection: Connection,
    pub run: String,
    pub ttl: Duration,
    state: watch::Sender<State>,
    progress: watch::Sender<Progress>,
}

#[derive(Debug)]
struct State {
    /// By token; cancelled, if it is lost.
    held: BTreeMap<String, CancellationToken>,
    lease: Lease,
    activity: Activity,
    /// Is there still someone who may claim more?
    open: bool,
    /// Did the run ever begin?
    begun: bool,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    renew_at: Instant,
    /// The fleet will not have given it to others before.
    until: Instant,
}

impl Hands {
    pub fn new(connection: Connection, run: String, ttl: Duration) -> Self {
        let now = Instant::now();
        let state = State {
            held: BTreeMap::new(),
            lease: Lease { renew_at: now, until: now },
            activity: Activity::Busy,
            open: true,
            begun: false,
        };
        let progress = Progress { activity: Activity::Busy, in_flight: 0 };
        Self {
            connection,
            run,
            ttl,
            state: watch::Sender::new(state),
            progress: watch::Sender::new(progress),
        }
    }

    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(|state| {
            change(state);
            let now = Progress { activity: state.activity.clone(), in_flight: state.held.len() };
            self.progress.send_if_modified(|progress| {
                let news = *progress != now;
                *progress = now;
                news
            });
        });
    }

    pub fn turn(&self, activity: Activity) {
        self.change(|state| state.activity = activity);
    }

    /// Waits until fewer than this many are in hand, and tells how many more may be.
    pub async fn room(&self, most: usize) -> usize {
        let mut state = self.state.subscribe();
        let free = state.wait_for(|state| state.held.len() < most).await;
        free.map_or(1, |state| most - state.held.len())
    }

    /// Takes in hand what was claimed.
    pub fn take(self: &Arc<Self>, claimed: Vec<ClaimedMessage>, asked: Instant) -> Vec<Letter> {
        let letters: Vec<_> = claimed.into_iter().map(|claimed| Letter::new(self.clone(), claimed)).collect();
        self.change(|state| {
            let held = letters.iter().map(|letter| (letter.token().to_owned(), letter.loss()));
            state.held.extend(held);
            (state.begun, state.activity) = (true, Activity::Busy);
            // A claim is heard, and being heard is written when a quarter of the lease is used: this much is left.
            state.renewed(asked, self.ttl * 3 / 4, self.ttl);
        });
        letters
    }

    /// It is in hand no more: finished, given back, or lost and known to be.
    pub fn put_down(&self, token: &str) {
        self.change(|state| drop(state.held.remove(token)));
    }

    /// Nobody will claim more. Tells how many are in hand.
    pub fn close(&self) -> usize {
        self.change(|state| (state.open, state.activity) = (false, Activity::Idle));
        self.state.borrow().held.len()
    }

    /// Keeps what is in hand alive, until there is nothing and will be nothing more. Then the run ends.
    pub async fn keep(self: Arc<Self>) {
        let mut pauses = Pauses::new(FIRST, LONGEST);
        while let Some(renew_at) = self.next_renewal().await {
            tokio::select! {
                () = sleep_until(renew_at) => {}
                // Perhaps it is not for now: something was put down, or heard.
                () = self.changed_from(renew_at) => continue,
            }
            match self.renew().await {
                Ok(()) => pauses.reset(),
                Err(error) => {
                    tracing::warn!("run `{}` could not be renewed, and tries again: {error}", self.run);
                    // The loss of the lease is told in time.
                    sleep_until(self.until().min(Instant::now() + pauses.next())).await;
                }
            }
        }
        self.end().await;
    }

    /// When to renew, as soon as there is something to keep; never, if there will be nothing.
    async fn next_renewal(&self) -> Option<Instant> {
        let mut state = self.state.subscribe();
        let found = state.wait_for(|state| state.is_keeping() || state.is_over()).await.ok()?;
        found.is_keeping().then_some(found.lease.renew_at)
    }

    async fn changed_from(&self, renew_at: Instant) {
        let changed = |state: &State| !state.is_keeping() || state.lease.renew_at != renew_at;
        let _ = self.state.subscribe().wait_for(changed).await;
    }

    /// One renewal covers all that is in hand; what the run no longer holds is lost. An error leaves that open, until
    /// the lease is certainly over.
    pub async fn renew(&self) -> Result<()> {
        let known = self.alive();
        for token in &known {
            // Before it is sent: the lease may have begun at any moment since.
            let asked = Instant::now();
            match self.ask(claim::Renew::new(token)).await {
                Ok(renewed) => {
                    let left = Duration::from_millis(renewed.lease_ms.0.unsigned_abs());
                    self.change(|state| state.renewed(asked, left, self.ttl));
                    return self.compare(&known).await;
                }
                Err(error) if is_over(&error) => self.lose(|other| other == token),
                Err(error) => {
                    if Instant::now() >= self.until() {
                        self.lose(|_| true);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// An operator may have taken one of many away. What was put down meanwhile is not missed.
    async fn compare(&self, known: &BTreeSet<String>) -> Result<()> {
        if known.len() < 2 {
            return Ok(());
        }
        let list = claim::List { run: Some(self.run.clone()), limit: Some(1000) };
        let held: BTreeSet<String> =
            self.ask(list).await?.claims.into_iter().map(|claim| claim.token).collect();
        self.lose(|token| known.contains(token) && !held.contains(token));
        Ok(())
    }

    fn until(&self) -> Instant {
        self.state.borrow().lease.until
    }

    fn alive(&self) -> BTreeSet<String> {
        let state = self.state.borrow();
        let alive = state.held.iter().filter(|(_, lost)| !lost.is_cancelled());
        alive.map(|(token, _)| token.clone()).collect()
    }

    fn lose(&self, which: impl Fn(&str) -> bool) {
        self.change(|state| {
            for (_, lost) in state.held.iter().filter(|(token, _)| which(token)) {
                lost.cancel();
            }
        });
    }

    /// A database that does not answer must not keep the loss of a lease from being told.
    async fn ask<O: Op>(&self, op: O) -> Result<O::Reply> {
        let limit = self.until().saturating_duration_since(Instant::now()).min(self.ttl / 5);
        let late = |_| Error::unavailable(format!("the fleet did not answer in {limit:?}"));
        timeout(limit, self.connection.call(op)).await.map_err(late)?
    }

    /// Asks until there is an answer, for as long as the claim lasts. Asking twice is safe for all that ends a claim.
    pub async fn insist<T, F>(&self, lost: &CancellationToken, ask: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut pauses = Pauses::new(FIRST, LONGEST);
        loop {
            let error = match ask().await {
                Ok(reply) => return Ok(reply),
                Err(error) if matches!(error.code(), Code::Unavailable | Code::OutcomeUnknown) => error,
                Err(error) => {
                    if is_over(&error) {
                        lost.cancel();
                    }
                    return Err(error);
                }
            };
            tokio::select! {
                () = lost.cancelled() => return Err(error),
                () = sleep(pauses.next()) => {}
            }
        }
    }

    /// Gives back several at once, with no attempt counted.
    async fn release(&self, tokens: Vec<String>, lost: &CancellationToken) -> Result<()> {
        let release = || self.connection.call(mail::Release { tokens: tokens.clone() });
        self.insist(lost, release).await.map(drop)
    }

    /// What a call that was given up may have claimed goes back first: the end of a run counts as an attempt.
    async fn end(&self) {
        if !self.state.borrow().begun {
            return;
        }
        let reset = mail::Reset { run: Some(self.run.clone()), mailbox: None };
        let end = run::End { run: self.run.clone(), reason: Some("closed".into()), lease: None };
        let _ = self.connection.call(reset).await;
        if let Err(error) = self.connection.call(end).await {
            tracing::debug!("run `{}` could not be ended, and will lapse: {error}", self.run);
        }
    }
}

impl State {
    fn is_keeping(&self) -> bool {
        self.held.values().any(|lost| !lost.is_cancelled())
    }

    fn is_over(&self) -> bool {
        !self.open && self.held.is_empty()
    }

    fn renewed(&mut self, asked: Instant, left: Duration, ttl: Duration) {
        self.lease = Lease { renew_at: asked + ttl.min(left) / 3, until: self.lease.until.max(asked + left) };
    }
}

/// Gives back several at once; one by one, if that is refused because one of them was lost.
pub(super) async fn give_back(letters: impl IntoIterator<Item = Letter>) {
    let letters: Vec<Letter> = letters.into_iter().collect();
    let Some(first) = letters.first() else { return };
    let tokens = letters.iter().map(|letter| letter.token().to_owned()).collect();
    // Not the first letter's own: it would be told of a loss that is another's.
    let given = first.hands().release(tokens, &CancellationToken::new()).await.is_ok();
    for letter in letters {
        if given {
            letter.settled();
        } else {
            let _ = letter.release().await;
        }
    }
}

/// The claim is over, whatever its holder does.
pub(super) fn is_over(error: &Error) -> bool {
    matches!(error.code(), Code::LeaseExpired | Code::AlreadyFinished | Code::Cancelled | Code::NotFound)
}
