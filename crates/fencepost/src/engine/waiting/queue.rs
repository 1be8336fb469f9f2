//! The queue of waiters, and which of them news wakes.
//!
//! A waiting claim says what it searched: its subscription. One of all waiters with the same subscription finds what any of
//! them would find, so news that could concern them wakes the first. If that one comes away empty, so would the others,
//! and they sleep on. If it leaves the queue instead (it found something, it failed, it hung up), there may be more: the
//! next two are woken. Two, because a crowd of tasks is then taken by a crowd, whose commits share a disk write; one task
//! costs three attempts. With a thousand agents waiting and 100 triggers a second, half of the triggers arrive within
//! 8 ms. If news woke 32 of each subscription, it would be 10 ms (and 46 instead of 29 when twenty come at once); if it
//! woke all, 170 to 450 ms.
//!
//! A waiter that only reads takes nothing from the others. News wakes all of those.

use crate::{
    db::{News, Subscription},
    sync::lock,
    topic::Topic,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    all: BTreeMap<u64, Waiter>,
    /// Waiters with the same subscription, in the order in which they came.
    subscriptions: HashMap<Subscription, BTreeSet<u64>>,
    /// Subscriptions that an event with this topic could satisfy.
    topics: HashMap<Topic, HashSet<Subscription>>,
}

#[derive(Debug)]
struct Waiter {
    /// Empty: it only reads, or it has made no attempt yet.
    subscriptions: Vec<Subscription>,
    /// It was woken, and has not begun its next attempt.
    woken: bool,
    signal: Arc<Notify>,
}

impl Waiter {
    fn wake(&mut self) {
        self.woken = true;
        self.signal.notify_one();
    }
}

impl Waiting {
    /// Wakes the first waiters with this subscription that are not woken yet.
    fn wake(&mut self, subscription: &Subscription, count: usize) {
        let Some(ids) = self.subscriptions.get(subscription) else { return };
        let asleep = ids.iter().filter(|id| !self.all[*id].woken).take(count).copied().collect::<Vec<_>>();
        for id in asleep {
            self.all.get_mut(&id).expect("everyone with a subscription is in the queue").wake();
        }
    }

    fn subscribe(&mut self, id: u64, subscription: Subscription) {
        for topic in &*subscription.topics {
            self.topics.entry(topic.clone()).or_default().insert(subscription.clone());
        }
        self.subscriptions.entry(subscription).or_default().insert(id);
    }

    fn unsubscribe(&mut self, id: u64, subscription: &Subscription) {
        let Some(ids) = self.subscriptions.get_mut(subscription) else { return };
        ids.remove(&id);
        if !ids.is_empty() {
            return;
        }
        self.subscriptions.remove(subscription);
        for topic in &*subscription.topics {
            if let Some(subscriptions) = self.topics.get_mut(topic) {
                subscriptions.remove(subscription);
                if subscriptions.is_empty() {
                    self.topics.remove(topic);
                }
            }
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }

    pub fn is_empty(&self) -> bool {
        self.lock().all.is_empty()
    }

    /// Until the last has left. (Someone may have come since.)
    pub async fn emptied(&self) {
        self.emptied.notified().await;
    }

    /// There is news: wakes all who only read, and one waiter of each subscription that the news could satisfy.
    pub fn wake(&self, news: &News) {
        let mut waiting = self.lock();
        waiting.all.values_mut().filter(|waiter| waiter.subscriptions.is_empty()).for_each(Waiter::wake);
        let subscriptions: HashSet<Subscription> = match news {
            News::Nothing => HashSet::new(),
            News::Of(topics) => {
                topics.iter().filter_map(|topic| waiting.topics.get(topic)).flatten().cloned().collect()
            }
            News::OfAll => waiting.subscriptions.keys().cloned().collect(),
        };
        for subscription in subscriptions {
            waiting.wake(&subscription, 1);
        }
    }

    pub fn enter(&self) -> Ticket<'_> {
        let mut waiting = self.lock();
        let (id, signal) = (waiting.next, Arc::new(Notify::new()));
        waiting.next += 1;
        waiting.all.insert(id, Waiter { subscriptions: Vec::new(), woken: false, signal: signal.clone() });
        Ticket { queue: self, id, signal, owes: false }
    }
}

/// One waiter's place in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(super) struct Ticket<'q> {
    queue: &'q Queue,
    id: u64,
    signal: Arc<Notify>,
    /// It was woken on behalf of others, and has not come away empty.
    owes: bool,
}

impl Ticket<'_> {
    /// An attempt begins: news from here on wakes it again.
    pub fn begin(&mut self) {
        let mut waiting = self.queue.lock();
        let waiter = waiting.all.get_mut(&self.id).expect("this ticket");
        self.owes |= std::mem::take(&mut waiter.woken);
    }

    /// The attempt came away empty. `for_all`: so would those of the other waiters with these subscriptions. If not, it
    /// still owes them a wake.
    pub fn rest(&mut self, subscriptions: Vec<Subscription>, for_all: bool) {
        let mut waiting = self.queue.lock();
        let waiter = waiting.all.get_mut(&self.id).expect("this ticket");
        let (had, woken) =
            (std::mem::replace(&mut waiter.subscriptions, subscriptions.clone()), waiter.woken);
        if had != subscriptions {
            for had in &had {
                waiting.unsubscribe(self.id, had);
            }
            for subscription in &subscriptions {
                waiting.subscribe(self.id, subscription.clone());
            }
            // It came away empty for reasons of its own, which the others with its old subscriptions need not share.
            if self.owes || woken {
                had.iter().filter(|had| !subscriptions.contains(had)).for_each(|had| waiting.wake(had, 2));
            }
        }
        self.owes = !for_all;
    }

    /// Until it is woken; at once, if it was since its attempt began.
    pub async fn woken(&self) {
        loop {
            let signal = self.signal.notified();
            if self.queue.lock().all[&self.id].woken {
                return;
            }
            signal.await;
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut waiting = self.queue.lock();
        let Some(waiter) = waiting.all.remove(&self.id) else { return };
        for subscription in &waiter.subscriptions {
            waiting.unsubscribe(self.id, subscription);
            if self.owes || waiter.woken {
                waiting.wake(subscription, 2);
            }
        }
        if waiting.all.is_empty() {
            self.queue.emptied.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscription(what: &str) -> Subscription {
        Subscription::new(what, [Topic::mail(what)])
    }

    fn parked<'q>(queue: &'q Queue, subscription: Option<&str>) -> Ticket<'q> {
        let mut ticket = queue.enter();
        ticket.begin();
        ticket.rest(subscription.map(self::subscription).into_iter().collect(), true);
        ticket
    }

    fn woken(tickets: &[&Ticket<'_>]) -> Vec<bool> {
        tickets.iter().map(|ticket| ticket.queue.lock().all[&ticket.id].woken).collect()
    }

    #[test]
    fn news_wakes_the_first_of_each_subscription_and_all_who_read() {
        let queue = Queue::default();
        let (a, b, c) = (parked(&queue, Some("x")), parked(&queue, Some("x")), parked(&queue, Some("y")));
        let (d, e) = (parked(&queue, None), parked(&queue, None));
        queue.wake(&News::OfAll);
        assert_eq!(woken(&[&a, &b, &c, &d, &e]), [true, false, true, true, true]);
        // More of it, before the first has begun an attempt: the next.
        queue.wake(&News::OfAll);
        assert_eq!(woken(&[&a, &b]), [true, true]);
    }

    #[test]
    fn news_of_a_topic_wakes_those_whom_it_concerns() {
        let queue = Queue::default();
        let (a, b, c) = (parked(&queue, Some("x")), parked(&queue, Some("y")), parked(&queue, None));
        queue.wake(&[Topic::mail("y"), Topic::Nobody, Topic::tasks()].into_iter().collect());
        assert_eq!(woken(&[&a, &b, &c]), [false, true, true]);
        queue.wake(&[Topic::mail("z"), Topic::Everyone].into_iter().collect());
        assert_eq!(woken(&[&a]), [true]);
        drop((a, b, c));
        assert!(queue.lock().topics.is_empty() && queue.lock().subscriptions.is_empty());
    }

    #[test]
    fn a_wake_is_used_up_by_coming_away_empty_and_passed_on_by_leaving() {
        let queue = Queue::default();
        let [mut a, b, c, d] = [(); 4].map(|()| parked(&queue, Some("x")));
        queue.wake(&News::OfAll);
        a.begin();
        a.rest(vec![subscription("x")], true);
        assert_eq!(woken(&[&a, &b, &c, &d]), [false; 4]);
        // Leaving without having been woken wakes nobody.
        drop(a);
        assert_eq!(woken(&[&b, &c, &d]), [false; 3]);
        // Before it began its attempt.
        queue.wake(&News::OfAll);
        drop(b);
        assert_eq!(woken(&[&c, &d]), [true, true]);
    }

    #[test]
    fn a_waiter_that_leaves_during_an_attempt_passes_the_wake_on() {
        let queue = Queue::default();
        let [mut a, mut b, c] = [(); 3].map(|()| parked(&queue, Some("x")));
        queue.wake(&News::OfAll);
        a.begin();
        drop(a);
        assert_eq!(woken(&[&b, &c]), [true, true]);
        // A waiter that could not expire what is due owes the others a wake.
        b.begin();
        b.rest(vec![subscription("x")], false);
        let d = parked(&queue, Some("x"));
        drop(b);
        assert_eq!(woken(&[&c, &d]), [true, true]);
    }

    /// Woken for the pool, it finds that its agent is full: another who waits for the pool is woken.
    #[test]
    fn a_waiter_with_a_new_subscription_passes_the_wake_on() {
        let queue = Queue::default();
        let [mut a, b, c] = [(); 3].map(|()| parked(&queue, Some("pool")));
        queue.wake(&News::OfAll);
        a.begin();
        a.rest(vec![subscription("full")], true);
        assert_eq!(woken(&[&a, &b, &c]), [false, true, true]);
    }

    #[test]
    fn news_during_an_attempt_is_not_lost() {
        let queue = Queue::default();
        let mut only = parked(&queue, Some("x"));
        only.begin();
        queue.wake(&News::OfAll);
        only.rest(vec![subscription("x")], true);
        assert_eq!(woken(&[&only]), [true]);
        // Nor before the first attempt is over.
        let mut new = queue.enter();
        new.begin();
        queue.wake(&News::OfAll);
        new.rest(vec![subscription("y")], true);
        assert_eq!(woken(&[&new]), [true]);
    }
}
