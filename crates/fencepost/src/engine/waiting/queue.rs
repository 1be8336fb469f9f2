//! The queue of waiters, and which of them news wakes.
//!
//! A waiting claim has subscriptions: the searches that found nothing. Any waiter with the same subscription would
//! find the same, so news that could concern them wakes only the first. If that waiter finds nothing, neither would
//! the others, and they sleep on. If it leaves the queue instead (it found something, it failed, its caller hung
//! up), there may be more: the next two are woken. Two, because many tasks are then taken by many waiters at once,
//! whose commits share a disk write; one task costs three attempts. With a thousand agents waiting and 100 triggers
//! a second, half of the triggers arrive within 8 ms. If news woke 32 of each subscription, it would be 10 ms (and
//! 46 instead of 29 when twenty come at once); if it woke all, 170 to 450 ms.
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
    /// The waiters with the same subscription, in the order in which they came.
    subscriptions: HashMap<Subscription, BTreeSet<u64>>,
    /// The subscriptions that an event with this topic could satisfy.
    topics: HashMap<Topic, HashSet<Subscription>>,
}

#[derive(Debug)]
struct Waiter {
    /// Empty if it only reads, or has made no attempt yet.
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
            self.all.get_mut(&id).expect("every waiter with a subscription is in the queue").wake();
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

    /// Returns when the last waiter has left. (Another may have come since.)
    pub async fn emptied(&self) {
        self.emptied.notified().await;
    }

    /// Wakes all waiters that only read, and one waiter of each subscription that the news could satisfy.
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
        Ticket { queue: self, id, signal, owes_wake: false }
    }
}

/// One waiter in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(super) struct Ticket<'q> {
    queue: &'q Queue,
    id: u64,
    signal: Arc<Notify>,
    /// It was woken on behalf of the others with its subscriptions, and has not found out that there is nothing for
    /// them.
    owes_wake: bool,
}

impl Ticket<'_> {
    /// An attempt begins: later news wakes it again.
    pub fn begin(&mut self) {
        let mut waiting = self.queue.lock();
        let waiter = waiting.all.get_mut(&self.id).expect("this ticket");
        self.owes_wake |= std::mem::take(&mut waiter.woken);
    }

    /// The attempt found nothing. `for_all`: the other waiters with these subscriptions would find nothing either. If
    /// not, it still owes them a wake.
    pub fn found_nothing(&mut self, subscriptions: Vec<Subscription>, for_all: bool) {
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
            // It found nothing for reasons of its own, which need not apply to the others with its old subscriptions.
            if self.owes_wake || woken {
                had.iter().filter(|had| !subscriptions.contains(had)).for_each(|had| waiting.wake(had, 2));
            }
        }
        self.owes_wake = !for_all;
    }

    /// Returns when it is woken; at once if it was woken since its attempt began.
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
            if self.owes_wake || waiter.woken {
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

    fn sleeping<'q>(queue: &'q Queue, subscription: Option<&str>) -> Ticket<'q> {
        let mut ticket = queue.enter();
        ticket.begin();
        ticket.found_nothing(subscription.map(self::subscription).into_iter().collect(), true);
        ticket
    }

    fn woken(tickets: &[&Ticket<'_>]) -> Vec<bool> {
        tickets.iter().map(|ticket| ticket.queue.lock().all[&ticket.id].woken).collect()
    }

    #[test]
    fn news_wakes_the_first_of_each_subscription_and_all_readers() {
        let queue = Queue::default();
        let (a, b, c) =
            (sleeping(&queue, Some("x")), sleeping(&queue, Some("x")), sleeping(&queue, Some("y")));
        let (d, e) = (sleeping(&queue, None), sleeping(&queue, None));
        queue.wake(&News::OfAll);
        assert_eq!(woken(&[&a, &b, &c, &d, &e]), [true, false, true, true, true]);
        // More news before the first has begun an attempt wakes the next.
        queue.wake(&News::OfAll);
        assert_eq!(woken(&[&a, &b]), [true, true]);
    }

    #[test]
    fn news_of_a_topic_wakes_only_its_subscriptions() {
        let queue = Queue::default();
        let (a, b, c) = (sleeping(&queue, Some("x")), sleeping(&queue, Some("y")), sleeping(&queue, None));
        queue.wake(&[Topic::mail("y"), Topic::Nobody, Topic::tasks()].into_iter().collect());
        assert_eq!(woken(&[&a, &b, &c]), [false, true, true]);
        queue.wake(&[Topic::mail("z"), Topic::Everyone].into_iter().collect());
        assert_eq!(woken(&[&a]), [true]);
        drop((a, b, c));
        assert!(queue.lock().topics.is_empty() && queue.lock().subscriptions.is_empty());
    }

    #[test]
    fn a_wake_is_used_up_by_finding_nothing_and_passed_on_by_leaving() {
        let queue = Queue::default();
        let [mut a, b, c, d] = [(); 4].map(|()| sleeping(&queue, Some("x")));
        queue.wake(&News::OfAll);
        a.begin();
        a.found_nothing(vec![subscription("x")], true);
        assert_eq!(woken(&[&a, &b, &c, &d]), [false; 4]);
        // A waiter that leaves without having been woken wakes nobody.
        drop(a);
        assert_eq!(woken(&[&b, &c, &d]), [false; 3]);
        // This one leaves before it began its attempt.
        queue.wake(&News::OfAll);
        drop(b);
        assert_eq!(woken(&[&c, &d]), [true, true]);
    }

    #[test]
    fn a_waiter_that_leaves_during_an_attempt_passes_the_wake_on() {
        let queue = Queue::default();
        let [mut a, mut b, c] = [(); 3].map(|()| sleeping(&queue, Some("x")));
        queue.wake(&News::OfAll);
        a.begin();
        drop(a);
        assert_eq!(woken(&[&b, &c]), [true, true]);
        // A waiter that could not finish expiry owes the others a wake.
        b.begin();
        b.found_nothing(vec![subscription("x")], false);
        let d = sleeping(&queue, Some("x"));
        drop(b);
        assert_eq!(woken(&[&c, &d]), [true, true]);
    }

    /// Woken for the pool, it finds that its agent is full: another waiter for the pool is woken.
    #[test]
    fn a_waiter_with_a_new_subscription_passes_the_wake_on() {
        let queue = Queue::default();
        let [mut a, b, c] = [(); 3].map(|()| sleeping(&queue, Some("pool")));
        queue.wake(&News::OfAll);
        a.begin();
        a.found_nothing(vec![subscription("full")], true);
        assert_eq!(woken(&[&a, &b, &c]), [false, true, true]);
    }

    #[test]
    fn news_during_an_attempt_is_not_lost() {
        let queue = Queue::default();
        let mut only = sleeping(&queue, Some("x"));
        only.begin();
        queue.wake(&News::OfAll);
        only.found_nothing(vec![subscription("x")], true);
        assert_eq!(woken(&[&only]), [true]);
        // News before the end of the first attempt is not lost either.
        let mut new = queue.enter();
        new.begin();
        queue.wake(&News::OfAll);
        new.found_nothing(vec![subscription("y")], true);
        assert_eq!(woken(&[&new]), [true]);
    }
}
