//! What a call leaves beside its reply: for waiting, for delivery, and for the store.

use crate::{
    clock::{Millis, Time},
    ids::Token,
    topic::Topic,
};
use std::{collections::HashSet, sync::Arc};

#[derive(Debug, Clone, Default)]
pub(crate) struct Notes {
    /// The time of the transaction.
    pub now: Time,
    /// When the reply could change although nothing is written: a waiting call tries again then.
    pub try_again_at: Option<Time>,
    /// When the waiting call has something of its own to do, whatever it finds.
    pub own_deadline: Option<Time>,
    /// What a claim searched and did not find.
    pub subscriptions: Vec<Subscription>,
    /// The claims that the reply hands over.
    pub delivered: Vec<Delivered>,
    /// This op changed a deadline; re-read `Due` before the next op of the batch.
    pub due_changed: bool,
    /// The clock was set right: later ops of the batch take this much off their time.
    pub clock_set_back: Millis,
    /// The batch of expiry before this call changed something and left something that is due.
    pub more_to_expire: bool,
    /// How many statements wrote.
    pub writes: usize,
}

impl Notes {
    /// How long after the transaction that time is.
    pub fn until(&self, at: Option<Time>) -> Option<Millis> {
        at.map(|at| at.since(self.now))
    }
}

/// What a claim searched and did not find. Every waiter with the same subscription would come away empty, too, so an
/// event with one of its topics wakes only the first of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Subscription {
    what: Arc<str>,
    pub topics: Arc<[Topic]>,
}

impl Subscription {
    /// `what`: everything that the answer depends on, except who asks.
    pub fn new(what: impl std::fmt::Debug, topics: impl IntoIterator<Item = Topic>) -> Self {
        Self { what: format!("{what:?}").into(), topics: topics.into_iter().collect() }
    }
}

/// A claim as one reply hands it over. Each time it is handed over again it has another number, so that giving back an
/// undelivered claim leaves alone a claim that reached somebody since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub token: Token,
    pub delivery: i64,
}

/// What is new in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    Nothing,
    /// Events with these topics. They also concern everyone who follows the log.
    Of(HashSet<Topic>),
    OfAll,
}

impl News {
    /// A run ended that may still hold something.
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
