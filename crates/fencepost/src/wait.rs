//! Waiting, instead of asking again and again.
//!
//! Who would rather wait than hear "not yet" registers, then looks: the op runs once, as ever. If the answer is a
//! "not yet", it looks again when there is something new in the log, when something is due by time alone (a lease's
//! end, a cap, a delay), and when the wait is over. Every change that could make an answer another writes its
//! event, so the log is the one thing to watch, and one watcher does it for all who wait here: at once after a commit
//! of this process, and at a pace of the database's own for the commits of others. While nobody waits there is no
//! watcher, and while nothing happens nobody looks.
//!
//! Everyone who waits is woken by any news. To wake only one that it fits, the watcher is the place: it could read
//! what is new and know.

use crate::{
    claim::deliver::Handed,
    clock::{Clock, Millis},
    error::{Error, Result},
    fleet::Store,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Mutex, Notify, watch},
    task::JoinHandle,
    time::{Instant, sleep},
};

/// The watcher's rest after news: what else is committed meanwhile is one wake, not many.
const BREATH: Duration = Duration::from_millis(1);
/// Something is due and this look could not settle it, because another transaction has it: time will not tell
/// when that is over.
const OVERDUE: Duration = Duration::from_millis(100);

/// How the watcher asks a database whether there is news.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// The pause between two questions, which grows while there is none.
    pub least: Duration,
    pub most: Duration,
    /// After this long everyone looks anyway.
    pub anyway: Option<Duration>,
}

impl Pace {
    /// A question takes 3 us (25 us with the way to its thread and back), so a hundred a second are a quarter of a
    /// percent of a core, and another process is heard after 5 ms on average.
    pub const SQLITE: Pace =
        Pace { least: Duration::from_millis(10), most: Duration::from_millis(10), anyway: None };
    /// A question is a round trip. A claim skips what another transaction has locked; if that is then rolled back,
    /// because its node died, nothing tells that the thing is free after all.
    pub const POSTGRES: Pace = Pace {
        least: Duration::from_millis(50),
        most: Duration::from_millis(500),
        anyway: Some(Duration::from_secs(30)),
    };

    fn longer(self, pause: Duration) -> Duration {
        (pause * 3 / 2).min(self.most)
    }
}

/// Those who wait on one fleet in this process.
#[derive(Debug)]
pub(crate) struct Waiters {
    store: Arc<Store>,
    clock: Clock,
    /// Counts the news. Those who wait are its receivers: who hangs up is gone from here, too.
    news: watch::Sender<u64>,
    /// Something was committed here.
    committed: Notify,
    watcher: Mutex<Option<JoinHandle<()>>>,
    /// How many have looked and are waiting now.
    parked: AtomicU64,
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

/// What one look found.
#[derive(Debug)]
pub(crate) struct Look<T> {
    pub answer: Result<T>,
    pub not_yet: bool,
    /// When it could be another answer with nothing written.
    pub again_in: Option<Millis>,
    /// The claims that the answer hands over.
    pub handed: Vec<Handed>,
}

impl<T> Look<T> {
    pub fn failed(error: Error) -> Self {
        Self { answer: Err(error), not_yet: false, again_in: None, handed: Vec::new() }
    }
}

impl Waiters {
    pub fn new(store: Arc<Store>, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            store,
            clock,
            news: watch::Sender::new(0),
            committed: Notify::new(),
            watcher: Mutex::default(),
            parked: AtomicU64::new(0),
        })
    }

    /// How many are waiting now.
    pub fn count(&self) -> u64 {
        self.parked.load(Ordering::SeqCst)
    }

    /// Something was committed: the watcher, if there is one, has a look at once.
    pub fn stir(&self) {
        if self.news.receiver_count() > 0 {
            self.committed.notify_one();
        }
    }

    /// Looks until the answer is no "not yet", or the time is over. The last look is never before the end; those
    /// before it are told that they are only glances.
    pub async fn wait<T, L: Future<Output = Look<T>>>(
        self: &Arc<Self>,
        wait: Millis,
        look: impl Fn(bool) -> L,
    ) -> Result<T> {
        let end = self.clock.ticks().saturating_add(wait.0);
        // Registered before it looks: what is committed in between wakes it.
        let mut news = self.enter().await;
        loop {
            news.mark_unchanged();
            // Taken before the look, so that what is due by then is never slept through, only looked for early.
            let from = self.clock.ticks();
            let glance = from < end;
            let Look { answer, not_yet, again_in, .. } = look(glance).await;
            if !glance || !not_yet {
                return answer;
            }
            let due = again_in.map_or(end, |span| end.min(from.saturating_add(span.0)));
            let _parked = Parked::new(&self.parked);
            tokio::select! {
                _ = news.changed() => {}
                // Real time paces this one: a clock that a test moves stands still.
                () = sleep(OVERDUE), if due <= from => {}
                () = self.clock.until(due), if due > from => {}
            }
        }
    }

    async fn enter(self: &Arc<Self>) -> watch::Receiver<u64> {
        let mut watcher = self.watcher.lock().await;
        let place = self.news.subscribe();
        // A watcher also ends with its runtime.
        if watcher.as_ref().is_none_or(JoinHandle::is_finished) {
            // News is what comes after this. If the database does not answer, the look that follows says so.
            let _ = self.store.has_news().await;
            *watcher = Some(tokio::spawn(self.clone().watch()));
        }
        place
    }

    /// Looks at the log for everyone, until nobody waits.
    async fn watch(self: Arc<Self>) {
        let pace = self.store.pace();
        let mut pause = pace.least;
        // Real time: it paces questions, and decides nothing.
        let mut told = Instant::now();
        loop {
            // Not for ever in step with the watchers of other processes.
            let jitter = pause.mul_f64(fastrand::f64() / 5.0);
            tokio::select! {
                () = self.news.closed() => if self.is_empty().await { return },
                () = self.committed.notified() => pause = pace.least,
                () = sleep(pause + jitter) => pause = pace.longer(pause),
            }
            // A database that does not answer is news: those who wait look, and are told.
            let anyway = pace.anyway.is_some_and(|anyway| told.elapsed() >= anyway);
            if self.store.has_news().await.unwrap_or(true) || anyway {
                (pause, told) = (pace.least, Instant::now());
                self.news.send_modify(|count| *count += 1);
                sleep(BREATH).await;
            }
        }
    }

    /// Nobody is left, and whoever comes next starts a watcher of their own.
    async fn is_empty(&self) -> bool {
        let mut watcher = self.watcher.lock().await;
        let empty = self.news.receiver_count() == 0;
        if empty {
            *watcher = None;
        }
        empty
    }
}
