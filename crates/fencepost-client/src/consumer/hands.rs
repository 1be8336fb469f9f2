//! What a consumer has in hand, and the claims on it.

mod keeping;

use super::Letter;
use crate::{Connection, again::Pauses};
use fencepost::{
    Code, Error, Result,
    claim::Claim,
    mail::{self, claim::ClaimedMessage},
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
    time::{Instant, sleep},
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
    /// Nobody else knows the run's name.
    own_run: bool,
    state: watch::Sender<State>,
    progress: watch::Sender<Progress>,
}

#[derive(Debug)]
struct State {
    /// By token.
    held: BTreeMap<String, Held>,
    lease: Lease,
    activity: Activity,
    /// Is there still someone who may claim more?
    open: bool,
    /// Did the run ever begin? It may have, as soon as a claim was asked for.
    begun: bool,
    /// Requests for a claim whose answer has not come; if one was given up, its answer comes to nobody.
    asking: BTreeSet<String>,
}

#[derive(Debug)]
struct Held {
    claim: Claim,
    /// Cancelled, if it is.
    lost: CancellationToken,
    /// Its holder is about to end the claim: that the fleet knows it no more is then no loss.
    ending: bool,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    renew_at: Instant,
    /// The fleet will not have given it to others before.
    until: Instant,
}

impl Hands {
    pub fn new(connection: Connection, run: Option<String>, ttl: Duration) -> Self {
        let now = Instant::now();
        let state = State {
            held: BTreeMap::new(),
            lease: Lease { renew_at: now, until: now },
            activity: Activity::Busy,
            open: true,
            begun: false,
            asking: BTreeSet::new(),
        };
        let progress = Progress { activity: Activity::Busy, in_flight: 0 };
        Self {
            connection,
            own_run: run.is_none(),
            run: run.unwrap_or_else(|| format!("consumer-{:08x}", fastrand::u32(..))),
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
            let held =
                |letter: &Letter| Held { claim: letter.claim().clone(), lost: letter.loss(), ending: false };
            state.held.extend(letters.iter().map(|letter| (letter.token().to_owned(), held(letter))));
            state.activity = Activity::Busy;
            // A claim is heard, and being heard is written when a quarter of the lease is used: this much is left.
            state.renewed(asked, self.ttl * 3 / 4, self.ttl);
        });
        letters
    }

    /// A claim is asked for.
    pub fn ask_for(&self, request: &str) {
        self.change(|state| {
            state.asking.insert(request.to_owned());
            state.begun = true;
        });
    }

    /// It is known what came of it.
    pub fn answered(&self, request: &str) {
        self.change(|state| {
            state.asking.remove(request);
        });
    }

    /// Its claim is about to be ended.
    pub fn ending(&self, token: &str) {
        self.change(|state| {
            if let Some(held) = state.held.get_mut(token) {
                held.ending = true;
            }
        });
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

    /// Asks until there is an answer, for as long as the claim lasts. Asking twice is safe for all that ends a claim.
    pub async fn insist<T, F>(&self, lost: &CancellationToken, ask: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut pauses = Pauses::new(FIRST, LONGEST);
        loop {
            let error = match ask().await {
                Ok(reply) => return Ok(reply),
                Err(error) if is_open(&error) => error,
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
}

impl State {
    fn is_keeping(&self) -> bool {
        self.held.values().any(|held| !held.lost.is_cancelled())
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

/// It may have been carried out, or be so yet.
pub(super) fn is_open(error: &Error) -> bool {
    matches!(error.code(), Code::Unavailable | Code::OutcomeUnknown)
}

/// The claim is over, whatever its holder does.
pub(super) fn is_over(error: &Error) -> bool {
    matches!(error.code(), Code::LeaseExpired | Code::AlreadyFinished | Code::Cancelled | Code::NotFound)
}
