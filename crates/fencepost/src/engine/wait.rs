//! Waiting, instead of asking again and again.
//!
//! Who would rather wait than hear "not yet" registers, then looks: the op runs once, as ever. If the answer is a
//! "not yet", it looks again when there is something new in the log, when something is due by time alone (a lease's
//! end, a cap, a delay), and when the wait is over. Every change that could make an answer another writes its
//! event, so the log is the one thing to watch, and one watcher does it for all who wait here: at once after a commit
//! of this process, when another node says so (PostgreSQL), and at a pace of the database's own in any case. While
//! nobody waits there is no watcher, and while nothing happens nobody looks.
//!
//! News does not wake everyone: see [`line`]. Nor does time: what is due is settled by the watcher, for all, and the events
//! of that are the news.

mod line;

use crate::{
    clock::{Clock, Millis},
    engine::fleet::Store,
    error::{Error, Result},
    names::Resource,
    ops::claim::deliver::Handed,
};
use line::{Line, Place};
pub(crate) use line::{News, Wish};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex as StdMutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Mutex, Notify},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

/// The watcher's rest after news: what else is committed meanwhile is one wake, not many.
const BREATH: Duration = Duration::from_millis(1);
/// Something is due and this look could not settle it, because another transaction has it: time will not tell
/// when that is over.
const OVERDUE: Duration = Duration::from_millis(100);

/// The database did not answer to a look: about when it looks again. Those who sleep are woken when it answers again.
const AWAY: Duration = Duration::from_millis(500);

/// A process that was granted a lock this often in a row, while others wait for it, lets one of them go first. With 4 the other
/// process got no larger share (both about 40 %), and all of them fewer grants (288 a second instead of 325).
const STREAK: i32 = 16;
/// How often it looks at most whether the lock went to another, and the pause between two looks.
const GIVE_WAY: (u32, Duration) = (500, Duration::from_millis(10));
/// Nobody took it meanwhile: they may be frozen, and are not awaited again before this many grants more.
const IN_VAIN: i32 = 1000;
/// Locks whose grants are counted.
const STREAKS: usize = 1000;

/// How the watcher asks a database whether there is news, if nothing tells it sooner.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// The pause between two questions, which grows while there is none.
    pub least: Duration,
    pub most: Duration,
    /// This long after all were last woken, all look anyway.
    pub anyway: Option<Duration>,
}

impl Pace {
    /// A question takes 3 us (25 us with the way to its thread and back), so a hundred a second are a quarter of a
    /// percent of a core, and another process is heard after 5 ms on average.
    pub const SQLITE: Pace =
        Pace { least: Duration::from_millis(10), most: Duration::from_millis(10), anyway: None };
    /// A question is a round trip. Other nodes tell what they commit: this is in case that was lost.
    pub const POSTGRES: Pace =
        Pace { least: Duration::from_secs(3), most: Duration::from_secs(3), anyway: None };
    /// Nobody would tell: there is no connection to listen on, or the log cannot be read to its end yet because an
    /// older transaction is running.
    pub const POSTGRES_UNTOLD: Pace =
        Pace { least: Duration::from_millis(5), most: Duration::from_millis(500), ..Self::POSTGRES };
    /// What is found was told: for tests of that.
    pub const ONLY_TOLD: Pace =
        Pace { least: Duration::from_secs(3600), most: Duration::from_secs(3600), ..Self::POSTGRES };

    fn longer(self, pause: Duration) -> Duration {
        (pause * 3 / 2).clamp(self.least, self.most)
    }
}

/// Those who wait on one fleet in this process.
#[derive(Debug)]
pub(crate) struct Waiters {
    store: Arc<Store>,
    clock: Clock,
    line: Line,
    /// Something was committed here.
    committed: Notify,
    /// When something is due by time alone, in ticks: the earliest that was seen.
    due: StdMutex<Option<i64>>,
    reminded: Notify,
    watcher: Mutex<Option<JoinHandle<()>>>,
    /// How many have looked and are waiting now.
    parked: AtomicU64,
    /// By lock: the last number that was granted here, and how many in a row were.
    streaks: StdMutex<HashMap<String, (i64, i32)>>,
}

/// One of those who are waiting now; no longer when it is dropped.
struct Parked<'a>(&'a AtomicU64);

impl<'a> Parked<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Which look of a call it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    /// A "not yet" is thrown away: its caller goes on waiting.
    pub is_glance: bool,
    /// Time has passed since the caller was let in.
    pub has_waited: bool,
}

impl Turn {
    /// Of a call that does not wait.
    pub const ONLY: Turn = Turn { is_glance: false, has_waited: false };
}

/// What one look found.
#[derive(Debug)]
pub(crate) struct Look<T> {
    pub answer: Result<T>,
    pub not_yet: bool,
    /// When it could be another answer with nothing written.
    pub again_in: Option<Millis>,
    /// When this one has something to do, whatever it finds.
    pub own_in: Option<Millis>,
    /// What it looked for and did not find: of those with the same wish, one speaks for all.
    pub wishes: Vec<Wish>,
    /// The claims that the answer hands over.
    pub handed: Vec<Handed>,
}

impl<T> Look<T> {
    pub fn failed(error: Error) -> Self {
        Self {
            answer: Err(error),
            not_yet: false,
            again_in: None,
            own_in: None,
            wishes: Vec::new(),
            handed: Vec::new(),
        }
    }

    /// There was no answer, and nothing was done.
    fn is_away(&self) -> bool {
        self.answer.as_ref().is_err_and(Error::is_away)
    }
}

impl Waiters {
    pub fn new(store: Arc<Store>, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            store,
            clock,
            line: Line::default(),
            committed: Notify::new(),
            due: StdMutex::default(),
            reminded: Notify::new(),
            watcher: Mutex::default(),
            parked: AtomicU64::new(0),
            streaks: StdMutex::default(),
        })
    }

    /// How many are waiting now.
    pub fn count(&self) -> u64 {
        self.parked.load(Ordering::SeqCst)
    }

    /// Something was committed: the watcher, if there is one, has a look at once.
    pub fn stir(&self) {
        if !self.store.tells() && !self.line.is_empty() {
            self.committed.notify_one();
        }
    }

    /// Counts in a row what this process is granted of each lock: between two numbers that follow each other nobody else
    /// had it.
    pub fn granted(&self, handed: &[Handed]) {
        for Handed { token, .. } in handed {
            let Resource::Lock(name) = &token.resource else { continue };
            let mut streaks = self.streaks();
            if streaks.len() >= STREAKS && !streaks.contains_key(name) {
                streaks.clear();
            }
            let (last, count) = streaks.entry(name.clone()).or_default();
            *count = if token.fence == *last + 1 { count.saturating_add(1) } else { 1 };
            *last = token.fence;
        }
    }

    fn streaks(&self) -> MutexGuard<'_, HashMap<String, (i64, i32)>> {
        self.streaks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds back while another process waits for a lock that was granted here too often in a row: until it went to
    /// another, nobody else wants it any longer, or the time of who waits here is over. Says whether it did.
    async fn give_way(&self, lock: &str, end: i64) -> bool {
        for looked in 0..GIVE_WAY.0 {
            let streak = self.streaks().get(lock).copied();
            let Some((last, _)) = streak.filter(|(_, count)| *count >= STREAK) else { return looked > 0 };
            let is_theirs = !self.store.wanted_by_others(lock)
                || self.store.last_fence(lock).await.ok().flatten() != Some(last);
            if is_theirs {
                self.streaks().remove(lock);
                return looked > 0;
            }
            if self.clock.ticks() >= end {
                return looked > 0;
            }
            // Real time: it paces processes, and decides nothing.
            sleep(GIVE_WAY.1).await;
        }
        if let Some((_, count)) = self.streaks().get_mut(lock) {
            *count = -IN_VAIN;
        }
        true
    }

    /// Looks until the answer is no "not yet", or the time is over. The last look is never before the end; those
    /// before it are told that they are only glances. A database that goes away meanwhile may come back meanwhile: who
    /// has waited goes on waiting, and who comes then is told at once.
    pub async fn wait<T, L: Future<Output = Look<T>>>(
        self: &Arc<Self>,
        lock: Option<&str>,
        wait: Millis,
        look: impl Fn(Turn) -> L,
    ) -> Result<T> {
        let end = self.clock.ticks().saturating_add(wait.0);
        // Registered before it looks: what is committed in between wakes it.
        let mut place = self.enter().await;
        let mut has_waited = false;
        // Also while it looks: until it is granted, it is wanted.
        let mut wanted = None;
        loop {
            if let Some(lock) = lock {
                has_waited |= self.give_way(lock, end).await;
            }
            place.begin();
            // Taken before the look, so that what is due by then is never slept through, only looked for early.
            let from = self.clock.ticks();
            let is_glance = from < end;
            let looked = look(Turn { is_glance, has_waited }).await;
            if is_glance && has_waited && looked.is_away() {
                let _parked = Parked::new(&self.parked);
                tokio::select! {
                    () = place.woken() => {}
                    // Real time: a database is awaited.
                    () = sleep(AWAY.mul_f64(0.5 + fastrand::f64())) => {}
                }
                continue;
            }
            let Look { answer, not_yet, again_in, own_in, wishes, .. } = looked;
            if !is_glance || !not_yet {
                return answer;
            }
            has_waited = true;
            if wanted.is_none() {
                wanted = lock.and_then(|lock| self.store.mark_wanted(lock));
            }
            let due = again_in.map(|span| from.saturating_add(span.0));
            let overdue = due.is_some_and(|due| due <= from);
            // The watcher minds the time for all who take things; who watches has a time of its own.
            let own = own_in.map_or(end, |span| end.min(from.saturating_add(span.0.max(1))));
            let own = due.filter(|_| wishes.is_empty()).map_or(own, |due| own.min(due));
            if let Some(due) = due.filter(|_| !wishes.is_empty() && !overdue) {
                self.remind(due);
            }
            place.rest(wishes, !overdue);
            let _parked = Parked::new(&self.parked);
            tokio::select! {
                () = place.woken() => {}
                // Real time paces this one: a clock that a test moves stands still.
                () = sleep(OVERDUE), if overdue => {}
                () = self.clock.until(own), if own > from => {}
            }
        }
    }

    /// Something is due then.
    fn remind(&self, at: i64) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        if due.is_none_or(|due| at < due) {
            *due = Some(at);
            self.reminded.notify_one();
        }
    }

    async fn enter(self: &Arc<Self>) -> Place<'_> {
        let mut watcher = self.watcher.lock().await;
        let place = self.line.enter();
        // A watcher also ends with its runtime.
        if watcher.as_ref().is_none_or(JoinHandle::is_finished) {
            // News is what comes after this. If the database does not answer, the look that follows says so.
            let _ = self.store.news().await;
            self.store.listen();
            *watcher = Some(tokio::spawn(self.clone().watch()));
        }
        place
    }

    /// Looks at the log, and at the time, for everyone, until nobody waits.
    async fn watch(self: Arc<Self>) {
        let mut pause = self.store.pace().least;
        // Real time: it paces questions, and decides nothing.
        let (mut asked, mut woke_all) = (Instant::now(), Instant::now());
        // Something is due that others are settling.
        let mut overdue = false;
        let mut away = false;
        loop {
            let due = *self.due.lock().unwrap_or_else(PoisonError::into_inner);
            tokio::select! {
                () = self.line.emptied() => {
                    if self.is_empty().await {
                        return;
                    }
                    continue;
                }
                () = self.reminded.notified() => continue,
                () = self.clock.until(due.unwrap_or(i64::MAX)), if due.is_some() => {
                    overdue = self.settle(due).await;
                    continue;
                }
                () = sleep(OVERDUE), if overdue => {
                    overdue = self.settle(None).await;
                    continue;
                }
                () = self.committed.notified() => {}
                () = self.store.told() => {}
                () = sleep_until(asked + pause) => {}
            }
            // While it is away nobody looks for nothing. What it has to tell then may be lost with it.
            let news = match self.store.news().await {
                Err(error) if error.is_away() => {
                    if !std::mem::replace(&mut away, true) {
                        tracing::warn!("those who wait go on waiting while the database is away: {error}");
                    }
                    News::Nothing
                }
                // They look, and are told.
                Err(_) => News::OfAll,
                Ok(_) if std::mem::take(&mut away) => News::OfAll,
                Ok(news) => news,
            };
            let pace = self.store.pace();
            let anyway = !away && pace.anyway.is_some_and(|anyway| woke_all.elapsed() >= anyway);
            let news = if anyway { News::OfAll } else { news };
            if news != News::Nothing {
                pause = pace.least;
                // News of some topics says nothing about the others.
                if news == News::OfAll {
                    woke_all = Instant::now();
                }
                self.line.wake(&news);
                if news.leaves_something_due() {
                    overdue = self.settle(None).await;
                }
                sleep(BREATH).await;
            } else {
                pause = pace.longer(pause);
            }
            // Not for ever in step with the watchers of other processes.
            asked = Instant::now() + pause.mul_f64(fastrand::f64() / 5.0);
        }
    }

    /// Does what is due, as whoever claims next would: one transaction here, instead of a look by each who waits. Says
    /// whether something is due still, because others have it or the database does not answer.
    async fn settle(&self, at: Option<i64>) -> bool {
        self.due.lock().unwrap_or_else(PoisonError::into_inner).take_if(|due| Some(*due) == at);
        let from = self.clock.ticks();
        let next = self.store.settle().await;
        self.committed.notify_one();
        match next {
            Ok(Some(Millis(0))) => true,
            Err(error) => {
                // They look, and are told. Of a database that is away they need not be.
                if !error.is_away() {
                    self.line.wake(&News::OfAll);
                }
                true
            }
            Ok(next) => {
                next.into_iter().for_each(|span| self.remind(from.saturating_add(span.0)));
                false
            }
        }
    }

    /// Nobody is left, and whoever comes next starts a watcher of their own.
    async fn is_empty(&self) -> bool {
        let mut watcher = self.watcher.lock().await;
        let empty = self.line.is_empty();
        if empty {
            *watcher = None;
        }
        empty
    }
}
