//! The line of those who wait, and whom news wakes.
//!
//! Who takes things says what it looked for. Of all who look for the same, one finds what any of them would find, so
//! news that could concern them wakes the first of them. If it comes away empty, so would the others, and they sleep on. If it leaves the
//! line instead (it found something, it failed, it hung up), there may be more: the next two are woken. Two,
//! because a crowd of tasks is then taken by a crowd, whose commits share a disk write; one task costs three looks.
//! With a thousand agents parked, and 100 triggers a second, half of them arrive within 8 ms. If news woke 32 of each
//! wish, it would be 10 ms (and 46 instead of 29 when twenty come at once); if it woke all, 170 to 450 ms.
//!
//! Who only watches takes nothing away from the others, and all of them are woken.

use crate::ops::event::Topic;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

/// What one who takes things looked for and did not find: everyone with this wish would come away empty, too. `topics`
/// are the events that could change that.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Wish {
    what: Arc<str>,
    topics: Arc<[Topic]>,
}

impl Wish {
    /// `what`: all that the answer depends on, except who asks.
    pub fn new(what: impl std::fmt::Debug, topics: impl IntoIterator<Item = Topic>) -> Self {
        Self { what: format!("{what:?}").into(), topics: topics.into_iter().collect() }
    }
}

/// What is new in the log, for those who wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    Nothing,
    /// It concerns those who wait for these topics, and all who follow the log.
    Of(HashSet<Topic>),
    OfAll,
}

impl News {
    /// A run has ended that may hold something still.
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

#[derive(Debug, Default)]
pub(super) struct Line {
    waiting: Mutex<Waiting>,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    all: BTreeMap<u64, Waiter>,
    /// Those who look for the same, in the order in which they came.
    wishes: HashMap<Wish, BTreeSet<u64>>,
    /// Which wishes an event of a topic could fulfil.
    topics: HashMap<Topic, HashSet<Wish>>,
}

#[derive(Debug)]
struct Waiter {
    /// What it looked for and did not find. None: it watches, or it has not looked yet.
    wishes: Vec<Wish>,
    /// It is to look, and has not begun to.
    woken: bool,
    bell: Arc<Notify>,
}

impl Waiter {
    fn wake(&mut self) {
        self.woken = true;
        self.bell.notify_one();
    }
}

impl Waiting {
    /// The first of those who look for this and are not woken yet.
    fn wake(&mut self, wish: &Wish, count: usize) {
        let Some(ids) = self.wishes.get(wish) else { return };
        let asleep = ids.iter().filter(|id| !self.all[*id].woken).take(count).copied().collect::<Vec<_>>();
        for id in asleep {
            self.all.get_mut(&id).expect("everyone with a wish is in the line").wake();
        }
    }

    fn add_wish(&mut self, id: u64, wish: Wish) {
        for topic in &*wish.topics {
            self.topics.entry(topic.clone()).or_default().insert(wish.clone());
        }
        self.wishes.entry(wish).or_default().insert(id);
    }

    fn forget_wish(&mut self, id: u64, wish: &Wish) {
        let Some(ids) = self.wishes.get_mut(wish) else { return };
        ids.remove(&id);
        if !ids.is_empty() {
            return;
        }
        self.wishes.remove(wish);
        for topic in &*wish.topics {
            if let Some(wishes) = self.topics.get_mut(topic) {
                wishes.remove(wish);
                if wishes.is_empty() {
                    self.topics.remove(topic);
                }
            }
        }
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_empty(&self) -> bool {
        self.lock().all.is_empty()
    }

    /// Until the last has left. (Someone may have come since.)
    pub async fn emptied(&self) {
        self.emptied.notified().await;
    }

    /// There is news: all who watch are woken, and one of each wish that it could fulfil.
    pub fn wake(&self, news: &News) {
        let mut waiting = self.lock();
        waiting.all.values_mut().filter(|waiter| waiter.wishes.is_empty()).for_each(Waiter::wake);
        let wishes: HashSet<Wish> = match news {
            News::Nothing => HashSet::new(),
            News::Of(topics) => {
                topics.iter().filter_map(|topic| waiting.topics.get(topic)).flatten().cloned().collect()
            }
            News::OfAll => waiting.wishes.keys().cloned().collect(),
        };
        for wish in wishes {
            waiting.wake(&wish, 1);
        }
    }

    pub fn enter(&self) -> Place<'_> {
        let mut waiting = self.lock();
        let (id, bell) = (waiting.next, Arc::new(Notify::new()));
        waiting.next += 1;
        waiting.all.insert(id, Waiter { wishes: Vec::new(), woken: false, bell: bell.clone() });
        Place { line: self, id, bell, owes: false }
    }
}

/// A place in the line; left when it is dropped.
#[derive(Debug)]
pub(super) struct Place<'l> {
    line: &'l Line,
    id: u64,
    bell: Arc<Notify>,
    /// It was woken in the place of others, and has not come away empty.
    owes: bool,
}

impl Place<'_> {
    /// It looks now: what is committed from here on wakes it again.
    pub fn begin(&mut self) {
        let mut waiting = self.line.lock();
        let waiter = waiting.all.get_mut(&self.id).expect("this place");
        self.owes |= std::mem::take(&mut waiter.woken);
    }

    /// It came away empty. `settled`: so would the others who wish for this. If not, it goes on for them.
    pub fn rest(&mut self, wishes: Vec<Wish>, settled: bool) {
        let mut waiting = self.line.lock();
        let waiter = waiting.all.get_mut(&self.id).expect("this place");
        let (had, woken) = (std::mem::replace(&mut waiter.wishes, wishes.clone()), waiter.woken);
        if had != wishes {
            for had in &had {
                waiting.forget_wish(self.id, had);
            }
            for wish in &wishes {
                waiting.add_wish(self.id, wish.clone());
            }
            // It came away empty for reasons of its own, which those who still wish for that need not share.
            if self.owes || woken {
                had.iter().filter(|had| !wishes.contains(had)).for_each(|had| waiting.wake(had, 2));
            }
        }
        self.owes = !settled;
    }

    /// Until it is woken; at once, if it was since it began to look.
    pub async fn woken(&self) {
        loop {
            let bell = self.bell.notified();
            if self.line.lock().all[&self.id].woken {
                return;
            }
            bell.await;
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.line.lock();
        let Some(waiter) = waiting.all.remove(&self.id) else { return };
        for wish in &waiter.wishes {
            waiting.forget_wish(self.id, wish);
            if self.owes || waiter.woken {
                waiting.wake(wish, 2);
            }
        }
        if waiting.all.is_empty() {
            self.line.emptied.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(what: &str) -> Wish {
        Wish::new(what, [Topic::mail(what)])
    }

    fn parked<'l>(line: &'l Line, wish: Option<&str>) -> Place<'l> {
        let mut place = line.enter();
        place.begin();
        place.rest(wish.map(self::wish).into_iter().collect(), true);
        place
    }

    fn woken(places: &[&Place<'_>]) -> Vec<bool> {
        places.iter().map(|place| place.line.lock().all[&place.id].woken).collect()
    }

    #[test]
    fn news_wakes_the_first_of_each_wish_and_all_who_watch() {
        let line = Line::default();
        let (a, b, c) = (parked(&line, Some("x")), parked(&line, Some("x")), parked(&line, Some("y")));
        let (d, e) = (parked(&line, None), parked(&line, None));
        line.wake(&News::OfAll);
        assert_eq!(woken(&[&a, &b, &c, &d, &e]), [true, false, true, true, true]);
        // More of it, before the first has begun to look: the next.
        line.wake(&News::OfAll);
        assert_eq!(woken(&[&a, &b]), [true, true]);
    }

    #[test]
    fn news_of_a_topic_wakes_those_whom_it_concerns() {
        let line = Line::default();
        let (a, b, c) = (parked(&line, Some("x")), parked(&line, Some("y")), parked(&line, None));
        line.wake(&[Topic::mail("y"), Topic::Nobody, Topic::tasks()].into_iter().collect());
        assert_eq!(woken(&[&a, &b, &c]), [false, true, true]);
        line.wake(&[Topic::mail("z"), Topic::Everyone].into_iter().collect());
        assert_eq!(woken(&[&a]), [true]);
        drop((a, b, c));
        assert!(line.lock().topics.is_empty() && line.lock().wishes.is_empty());
    }

    #[test]
    fn a_wake_is_used_up_by_coming_away_empty_and_passed_on_by_leaving() {
        let line = Line::default();
        let [mut a, b, c, d] = [(); 4].map(|()| parked(&line, Some("x")));
        line.wake(&News::OfAll);
        a.begin();
        a.rest(vec![wish("x")], true);
        assert_eq!(woken(&[&a, &b, &c, &d]), [false; 4]);
        // Leaving without having been woken wakes nobody.
        drop(a);
        assert_eq!(woken(&[&b, &c, &d]), [false; 3]);
        // Before it began to look.
        line.wake(&News::OfAll);
        drop(b);
        assert_eq!(woken(&[&c, &d]), [true, true]);
    }

    #[test]
    fn who_leaves_in_the_middle_of_a_look_passes_it_on() {
        let line = Line::default();
        let [mut a, mut b, c] = [(); 3].map(|()| parked(&line, Some("x")));
        line.wake(&News::OfAll);
        a.begin();
        drop(a);
        assert_eq!(woken(&[&b, &c]), [true, true]);
        // And who could not settle what is due goes on for the others.
        b.begin();
        b.rest(vec![wish("x")], false);
        let d = parked(&line, Some("x"));
        drop(b);
        assert_eq!(woken(&[&c, &d]), [true, true]);
    }

    /// Woken for the pool, it finds that its agent is full: another who waits for the pool is woken.
    #[test]
    fn who_no_longer_wishes_for_it_passes_it_on() {
        let line = Line::default();
        let [mut a, b, c] = [(); 3].map(|()| parked(&line, Some("pool")));
        line.wake(&News::OfAll);
        a.begin();
        a.rest(vec![wish("full")], true);
        assert_eq!(woken(&[&a, &b, &c]), [false, true, true]);
    }

    #[test]
    fn news_in_the_middle_of_a_look_is_not_lost() {
        let line = Line::default();
        let mut only = parked(&line, Some("x"));
        only.begin();
        line.wake(&News::OfAll);
        only.rest(vec![wish("x")], true);
        assert_eq!(woken(&[&only]), [true]);
        // Nor before the first look is over.
        let mut new = line.enter();
        new.begin();
        line.wake(&News::OfAll);
        new.rest(vec![wish("y")], true);
        assert_eq!(woken(&[&new]), [true]);
    }
}
