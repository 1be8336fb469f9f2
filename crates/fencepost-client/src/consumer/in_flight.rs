//! A consumer's messages in flight, and the claims on them.

mod renew;

use super::Message;
use crate::{
    connection::Connection,
    renewal::{ConfirmedLease, Renewal, Ticks},
    retry::BACKOFF,
};
use fencepost::{
    Error, Millis, Result,
    claim::Claim,
    mail::{self, claim::ClaimedMessage},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
// Real time: it is spent waiting for a real database.
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

/// The state of a consumer.
#[derive(Debug, Clone, PartialEq)]
pub enum Activity {
    /// It found nothing to claim, or has stopped.
    Idle,
    /// It has messages, or may find some.
    Busy,
    /// The fleet fails with this error, and the consumer retries.
    Retrying(Error),
}

/// How a consumer is getting on.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub activity: Activity,
    /// Messages that are claimed and neither finished nor given back.
    pub in_flight: usize,
}

impl Progress {
    /// Idle, with nothing in flight. Messages may still be pending.
    pub fn safe_to_restart(&self) -> bool {
        self.activity == Activity::Idle && self.in_flight == 0
    }
}

#[derive(Debug)]
pub(super) struct InFlight {
    pub connection: Connection,
    pub run: String,
    pub ttl: Duration,
    /// The consumer made up the run's name, so nobody else uses it.
    own_run: bool,
    state: watch::Sender<State>,
    progress: watch::Sender<Progress>,
}

#[derive(Debug)]
struct State {
    /// By token.
    messages: BTreeMap<String, Entry>,
    renewal: Renewal,
    activity: Activity,
    /// The consumer may claim more.
    open: bool,
    /// A claim was sent, so the run may exist.
    run_may_exist: bool,
    /// Ids of claims without an answer. The answer to a claim that was given up reaches nobody.
    unanswered: BTreeSet<String>,
}

#[derive(Debug)]
struct Entry {
    claim: Claim,
    /// Cancelled when the claim is lost.
    lost: CancellationToken,
    /// The holder is about to end the claim. If the fleet no longer knows the claim, that is then not a loss.
    ending: bool,
}

impl InFlight {
    pub fn new(connection: Connection, run: Option<String>, ttl: Duration) -> Self {
        let state = State {
            messages: BTreeMap::new(),
            renewal: Renewal::new(ttl.into()),
            activity: Activity::Busy,
            open: true,
            run_may_exist: false,
            unanswered: BTreeSet::new(),
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
            let now = Progress { activity: state.activity.clone(), in_flight: state.messages.len() };
            self.progress.send_if_modified(|progress| {
                let changed = *progress != now;
                *progress = now;
                changed
            });
        });
    }

    pub fn set_activity(&self, activity: Activity) {
        self.change(|state| state.activity = activity);
    }

    /// Waits until fewer than `limit` messages are in flight. Returns how many more may be.
    pub async fn free_slots(&self, limit: usize) -> usize {
        let mut state = self.state.subscribe();
        let free = state.wait_for(|state| state.messages.len() < limit).await;
        free.map_or(1, |state| limit - state.messages.len())
    }

    /// Adds claimed messages. `sent` is when the claim was sent.
    pub fn add(self: &Arc<Self>, claimed: Vec<ClaimedMessage>, sent: Ticks) -> Vec<Message> {
        let messages: Vec<_> =
            claimed.into_iter().map(|claimed| Message::new(self.clone(), claimed)).collect();
        self.change(|state| {
            let entry = |message: &Message| {
                let (claim, lost) = (message.claim().clone(), message.lost_token());
                (message.token().to_owned(), Entry { claim, lost, ending: false })
            };
            state.messages.extend(messages.iter().map(entry));
            state.activity = Activity::Busy;
            // A claim renews its run, but the fleet writes that only when a quarter of the lease is used. At least three
            // quarters are left.
            state.renewal.renewed(ConfirmedLease { sent, left: Millis::from(self.ttl * 3 / 4) });
        });
        messages
    }

    pub fn claim_sent(&self, request: &str) {
        self.change(|state| {
            state.unanswered.insert(request.to_owned());
            state.run_may_exist = true;
        });
    }

    pub fn claim_answered(&self, request: &str) {
        self.change(|state| {
            state.unanswered.remove(request);
        });
    }

    /// Notes that the holder is about to end this claim.
    pub fn set_ending(&self, token: &str) {
        self.change(|state| {
            if let Some(entry) = state.messages.get_mut(token) {
                entry.ending = true;
            }
        });
    }

    /// Removes a message that was finished, given back, or lost and reported so.
    pub fn remove(&self, token: &str) {
        self.change(|state| drop(state.messages.remove(token)));
    }

    /// Ends claiming. Returns how many messages are in flight.
    pub fn close(&self) -> usize {
        self.change(|state| (state.open, state.activity) = (false, Activity::Idle));
        self.state.borrow().messages.len()
    }

    /// Repeats a call until there is an answer, or until the claim is lost. Every op that ends a claim may be repeated.
    pub async fn call_until_answered<T, F>(&self, lost: &CancellationToken, call: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut backoff = BACKOFF;
        loop {
            let error = match call().await {
                Ok(reply) => return Ok(reply),
                Err(error) if error.is_transient() => error,
                Err(error) => {
                    if error.ends_claim() {
                        lost.cancel();
                    }
                    return Err(error);
                }
            };
            tokio::select! {
                () = lost.cancelled() => return Err(error),
                () = sleep(backoff.next()) => {}
            }
        }
    }

    /// Gives back several messages at once. Their attempts do not count.
    async fn release(&self, tokens: Vec<String>, lost: &CancellationToken) -> Result<()> {
        let release = || self.connection.call(mail::Release { tokens: tokens.clone() });
        self.call_until_answered(lost, release).await.map(drop)
    }
}

impl State {
    fn needs_renewal(&self) -> bool {
        self.messages.values().any(|entry| !entry.lost.is_cancelled())
    }

    fn is_finished(&self) -> bool {
        !self.open && self.messages.is_empty()
    }
}

/// Gives back several messages with one request, or one by one if one of them was lost.
pub(super) async fn release_all(messages: impl IntoIterator<Item = Message>) {
    let messages: Vec<Message> = messages.into_iter().collect();
    let Some(first) = messages.first() else { return };
    let tokens = messages.iter().map(|message| message.token().to_owned()).collect();
    // A token of its own: a refusal because of another message must not mark the first one as lost.
    let released = first.in_flight().release(tokens, &CancellationToken::new()).await.is_ok();
    for message in messages {
        if released {
            message.mark_finished();
        } else {
            let _ = message.release().await;
        }
    }
}
