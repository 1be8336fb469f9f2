//! The notes that a call returns with its reply: for waiting, for delivery, and for the store.

use crate::{
    clock::{Millis, Time},
    ids::Token,
    topic::Topic,
};
use std::{collections::HashSet, sync::Arc};

/// The notes of one call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notes {
    /// The time of the transaction.
    pub now: Time,
    /// The time at which the reply could change although nothing is written: a waiting call tries again then.
    pub try_again_at: Option<Time>,
    /// The time at which this waiting call must try again for reasons of its own, such as renewing its agent.
    pub own_deadline: Option<Time>,
    /// The searches of a claim that found nothing.
    pub subscriptions: Vec<Subscription>,
    /// The claims that the reply delivers.
    pub delivered: Vec<Delivered>,
    /// This op changed a deadline; re-read `Due` before the next op of the batch.
    pub due_changed: bool,
    /// This op set the clock back by this much; later ops of the batch do the same.
    pub clock_set_back: Millis,
    /// The batch of expiry before this call changed something and left something that is due.
    pub more_to_expire: bool,
    /// The number of statements that wrote.
    pub writes: usize,
}

impl Notes {
    /// The span from the transaction to that time.
    pub fn until(&self, at: Option<Time>) -> Option<Millis> {
        at.map(|at| at.since(self.now))
    }
}

/// A search of a claim that found nothing. Every waiter with the same subscription would find nothing either, so an
/// event with one of its topics wakes only the first of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Subscription {
    what: Arc<str>,
    pub topics: Arc<[Topic]>,
}

impl Subscription {
    /// `what`: everything that the answer depends on, except the caller.
    pub fn new(what: impl std::fmt::Debug, topics: impl IntoIterator<Item = Topic>) -> Self {
        Self { what: format!("{what:?}").into(), topics: topics.into_iter().collect() }
    }
}

/// A claim in one reply. Each delivery of the same claim has a number of its own: an undelivered claim is not given
/// back if a later reply delivered it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub token: Token,
    pub delivery: i64,
}

/// The news in the log since the last question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    Nothing,
    /// Events with these topics. They also concern every follower of the log.
    Of(HashSet<Topic>),
    /// Events that may concern every waiter.
    OfAll,
}

impl News {
    /// A run ended and may still hold something.
    pub fn leaves_something_due(&self) -> bool {
        match self {
            News::Nothing => false,
            News::Of(topics) => topics.iter().any(Topic::leaves_something_due),
            News::OfAll => true,
        }
    }
}

impl FromIterator<Topic> for News {
    fn from_iter<I: IntoIterator<Item = Topic>>(topics: I) -> Self {
        let topics: HashSet<Topic> = topics.into_iter().collect();
        if topics.contains(&Topic::Everyone) { News::OfAll } else { News::Of(topics) }
    }
}
