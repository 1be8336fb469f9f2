//! Waiting, instead of asking again and again.
//!
//! A waiting call registers, runs the op, and on a not-yet reply sleeps until a relevant event, a deadline or its timeout.
//! Every change that could turn a not-yet into a yes writes an event, so the log is the one thing to watch. One watcher
//! does it for all waiters of this process: at once after a commit of this process, when another node notifies us
//! (PostgreSQL), and at the database's own pace in any case. While nobody waits there is no watcher, and while nothing
//! happens nobody makes an attempt.
//!
//! News does not wake every waiter: see [`queue`]. Nor does time: the watcher expires what is due, once for all, and the
//! events of that are the news.

mod queue;

use super::{
    op::typed,
    prelude::{Call, Prelude, work},
};
use crate::{
    caller::Caller,
    clock::{Clock, Millis},
    db::{Delivered, News, Notes, Store},
    error::{Error, Result},
    ids::Resource,
    lease::{Nouns, expiry},
    sync::lock,
};
use queue::{Queue, Ticket};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex as StdMutex,
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
/// Something is due and this attempt could not expire it, because another transaction has locked it: no deadline says
/// when that is over.
const OVERDUE: Duration = Duration::from_millis(100);

/// The database did not answer an attempt: about when the waiter tries again. Sleeping waiters are woken when it answers.
const AWAY: Duration = Duration::from_millis(500);

/// A process that was granted a resource this often in a row, while others wait for it, lets one of them go first. With 4
/// the other process got no larger share (both about 40 %), and all of them fewer grants (288 a second instead of 325).
const STREAK: i32 = 16;
/// How often it checks at most whether the resource went to another, and the pause between two checks.
const GIVE_WAY: (u32, Duration) = (500, Duration::from_millis(10));
/// Nobody took it meanwhile: they may be frozen, and are not awaited again before this many grants more.
const IN_VAIN: i32 = 1000;
/// Resources whose grants are counted.
const STREAKS: usize = 1000;

/// The waiters on one fleet in this process.
#[derive(Debug)]
pub(crate) struct Waiters {
    store: Arc<Store>,
    clock: Clock,
    nouns: &'static Nouns,
    queue: Queue,
    /// Something was committed here.
    committed: Notify,
    /// When something is due by time alone, in ticks: the earliest that was seen.
    due: StdMutex<Option<i64>>,
    reminded: Notify,
    watcher: Mutex<Option<JoinHandle<()>>>,
    /// How many made an attempt and are waiting now.
    parked: AtomicU64,
    /// By resource: the last fence that was granted here, and how many in a row were.
    streaks: StdMutex<HashMap<Resource, (i64, i32)>>,
}

/// A waiter that sleeps, until it is dropped.
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

/// Which attempt of a call it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    /// The caller is still waiting and discards a not-yet reply.
    pub probe_only: bool,
    /// Time has passed since the caller's key was checked.
    pub has_waited: bool,
}

impl Turn {
    /// Of a call that does not wait.
    pub const ONLY: Turn = Turn { probe_only: false, has_waited: false };
}

/// What one attempt gave.
#[derive(Debug)]
pub(crate) struct Attempt<T> {
    pub answer: Result<T>,
    pub not_yet: bool,
    pub notes: Notes,
}

impl<T> Attempt<T> {
    pub fn failed(error: Error) -> Self {
        Self { answer: Err(error), not_yet: false, notes: Notes::default() }
    }
}

impl Waiters {
    pub fn new(store: Arc<Store>, clock: Clock, nouns: &'static Nouns) -> Arc<Self> {
        Arc::new(Self {
            store,
            clock,
            nouns,
            queue: Queue::default(),
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

    /// Something was committed here: the watcher, if there is one, asks for news at once.
    pub fn committed(&self) {
        if !self.store.notifies_itself() && !self.queue.is_empty() {
            self.committed.notify_one();
        }
    }

    /// Counts how often in a row this process is granted a resource: between two fences that follow each other nobody else
    /// had it.
    pub fn granted(&self, resource: Option<&Resource>, delivered: &[Delivered]) {
        let Some(resource) = resource else { return };
        for Delivered { token, .. } in
            delivered.iter().filter(|delivered| delivered.token.resource == *resource)
        {
            let mut streaks = lock(&self.streaks);
            if streaks.len() >= STREAKS && !streaks.contains_key(resource) {
                streaks.clear();
            }
            let (last, count) = streaks.entry(resource.clone()).or_default();
            *count = if token.fence == *last + 1 { count.saturating_add(1) } else { 1 };
            *last = token.fence;
        }
    }

    /// Holds back while another process waits for a resource that was granted here too often in a row: until it went to
    /// another, nobody else wants it any longer, or the timeout of the waiter here. Says whether it did.
    async fn give_way(&self, resource: &Resource, end: i64) -> bool {
        let text = resource.to_string();
        for checked in 0..GIVE_WAY.0 {
            let streak = lock(&self.streaks).get(resource).copied();
            let Some((last, _)) = streak.filter(|(_, count)| *count >= STREAK) else { return checked > 0 };
            let is_theirs = !self.store.wanted_by_others(&text)
                || self.last_fence(resource).await.ok().flatten() != Some(last);
            if is_theirs {
                lock(&self.streaks).remove(resource);
                return checked > 0;
            }
            if self.clock.ticks() >= end {
                return checked > 0;
            }
            // Real time: it paces processes, and decides nothing.
            sleep(GIVE_WAY.1).await;
        }
        if let Some((_, count)) = lock(&self.streaks).get_mut(resource) {
            *count = -IN_VAIN;
        }
        true
    }

    /// The fence of the last claim on a resource.
    async fn last_fence(&self, resource: &Resource) -> Result<Option<i64>> {
        let noun = self.nouns.of(resource)?;
        let resource = resource.clone();
        let read = work(move |tx| {
            let resource = resource.clone();
            Box::pin(async move { Ok(noun.claim_state(tx, resource.id()).await?.map(|state| state.fence)) })
        });
        let call = Call::new(Prelude::due(), Caller::default(), read);
        typed(self.store.read(Arc::new(call)).await.answer?)
    }

    /// Makes attempts until the answer is no not-yet, or the timeout is over. The last attempt is never before the end;
    /// those before it only probe. A database that goes away meanwhile may come back meanwhile: a call that has waited
    /// goes on waiting, and a new one is refused at once.
    pub async fn wait<T, A: Future<Output = Attempt<T>>>(
        self: &Arc<Self>,
        resource: Option<Resource>,
        wait: Millis,
        attempt: impl Fn(Turn) -> A,
    ) -> Result<T> {
        let end = self.clock.ticks().saturating_add(wait.0);
        // Registered before the attempt: a commit in between wakes it.
        let mut ticket = self.enter().await;
        let mut has_waited = false;
        // Also during an attempt: the resource is wanted until it is granted.
        let mut wanted = None;
        loop {
            if let Some(resource) = &resource {
                has_waited |= self.give_way(resource, end).await;
            }
            ticket.begin();
            // Taken before the attempt, so that a deadline by then is never slept through, only met early.
            let from = self.clock.ticks();
            let probe_only = from < end;
            let Attempt { answer, not_yet, mut notes } = attempt(Turn { probe_only, has_waited }).await;
            if probe_only && has_waited && answer.as_ref().is_err_and(Error::is_away) {
                let _parked = Parked::new(&self.parked);
                tokio::select! {
                    () = ticket.woken() => {}
                    // Real time: a database is awaited.
                    () = sleep(AWAY.mul_f64(0.5 + fastrand::f64())) => {}
                }
                continue;
            }
            if !probe_only || !not_yet {
                return answer;
            }
            has_waited = true;
            if wanted.is_none() {
                wanted = resource.as_ref().and_then(|resource| self.store.mark_wanted(&resource.to_string()));
            }
            let subscriptions = std::mem::take(&mut notes.subscriptions);
            let due = notes.until(notes.try_again_at).map(|span| from.saturating_add(span.0));
            let overdue = due.is_some_and(|due| due <= from);
            // The watcher minds the deadlines of all claims; a reader has one of its own.
            let own = notes.until(notes.own_deadline);
            let own = own.map_or(end, |span| end.min(from.saturating_add(span.0.max(1))));
            let own = due.filter(|_| subscriptions.is_empty()).map_or(own, |due| own.min(due));
            if let Some(due) = due.filter(|_| !subscriptions.is_empty() && !overdue) {
                self.remind(due);
            }
            ticket.rest(subscriptions, !overdue);
            let _parked = Parked::new(&self.parked);
            tokio::select! {
                () = ticket.woken() => {}
                // Real time paces this one: a clock that a test moves stands still.
                () = sleep(OVERDUE), if overdue => {}
                () = self.clock.until(own), if own > from => {}
            }
        }
    }

    /// There is a deadline then.
    fn remind(&self, at: i64) {
        let mut due = lock(&self.due);
        if due.is_none_or(|due| at < due) {
            *due = Some(at);
            self.reminded.notify_one();
        }
    }

    async fn enter(self: &Arc<Self>) -> Ticket<'_> {
        let mut watcher = self.watcher.lock().await;
        let ticket = self.queue.enter();
        // A watcher also ends with its runtime.
        if watcher.as_ref().is_none_or(JoinHandle::is_finished) {
            // News is what comes after this. If the database does not answer, the attempt that follows says so.
            let _ = self.store.news().await;
            self.store.listen();
            *watcher = Some(tokio::spawn(self.clone().watch()));
        }
        ticket
    }

    /// Watches the log and the deadlines for all waiters, until nobody waits.
    async fn watch(self: Arc<Self>) {
        let mut pause = self.store.pace().least;
        // Real time: it paces questions, and decides nothing.
        let (mut asked, mut woke_all) = (Instant::now(), Instant::now());
        // Something is due that others have locked.
        let mut overdue = false;
        let mut away = false;
        loop {
            let due = *lock(&self.due);
            tokio::select! {
                () = self.queue.emptied() => {
                    if self.is_empty().await {
                        return;
                    }
                    continue;
                }
                () = self.reminded.notified() => continue,
                () = self.clock.until(due.unwrap_or(i64::MAX)), if due.is_some() => {
                    overdue = self.expire(due).await;
                    continue;
                }
                () = sleep(OVERDUE), if overdue => {
                    overdue = self.expire(None).await;
                    continue;
                }
                () = self.committed.notified() => {}
                () = self.store.notified() => {}
                () = sleep_until(asked + pause) => {}
            }
            // While it is away nobody makes an attempt in vain. Its notifications of that time may be lost with it.
            let news = match self.store.news().await {
                Err(error) if error.is_away() => {
                    if !std::mem::replace(&mut away, true) {
                        tracing::warn!("those who wait go on waiting while the database is away: {error}");
                    }
                    News::Nothing
                }
                // They try, and get the error.
                Err(_) => News::OfAll,
                Ok(_) if std::mem::take(&mut away) => News::OfAll,
                Ok(news) => news,
            };
            let pace = self.store.pace();
            let wake_all = !away && woke_all.elapsed() >= pace.wake_all;
            let news = if wake_all { News::OfAll } else { news };
            if news != News::Nothing {
                pause = pace.least;
                // News of some topics says nothing about the others.
                if news == News::OfAll {
                    woke_all = Instant::now();
                }
                self.queue.wake(&news);
                if news.leaves_something_due() {
                    overdue = self.expire(None).await;
                }
                sleep(BREATH).await;
            } else {
                pause = pace.longer(pause);
            }
            // Not for ever in step with the watchers of other processes.
            asked = Instant::now() + pause.mul_f64(fastrand::f64() / 5.0);
        }
    }

    /// Expires what is due, as the next claim would: one transaction here, instead of an attempt by each waiter. Says
    /// whether something is still due, because others have locked it or the database does not answer.
    async fn expire(&self, at: Option<i64>) -> bool {
        lock(&self.due).take_if(|due| Some(*due) == at);
        let from = self.clock.ticks();
        let next = self.expire_all().await;
        self.committed.notify_one();
        match next {
            Ok(Some(Millis(0))) => true,
            Err(error) => {
                // They try, and get the error. Of a database that is away they need not be.
                if !error.is_away() {
                    self.queue.wake(&News::OfAll);
                }
                true
            }
            Ok(next) => {
                next.into_iter().for_each(|span| self.remind(from.saturating_add(span.0)));
                false
            }
        }
    }

    /// Expires what is due, as far as others have not locked it. Gives how long it is until the next deadline; nothing at
    /// all, if something is still due.
    async fn expire_all(&self) -> Result<Option<Millis>> {
        let next = work(|tx| {
            Box::pin(async move {
                let left = tx.opening.due.at.map(|at| at.since(tx.now));
                Ok(if tx.opening.due.is_due(tx.now) { Some(Millis(0)) } else { left })
            })
        });
        let nouns = self.nouns;
        let sweep = work(move |tx| Box::pin(expiry::sweep(tx, nouns)));
        loop {
            let read = Call::new(Prelude::due(), Caller::default(), next.clone());
            let next: Option<Millis> = typed(self.store.read(Arc::new(read)).await.answer?)?;
            if next != Some(Millis(0)) {
                return Ok(next);
            }
            let write = Call::new(Prelude::nothing(), Caller::default(), sweep.clone());
            if typed::<u64>(self.store.write(Arc::new(write)).await.answer?)? == 0 {
                return Ok(next);
            }
        }
    }

    /// Nobody is left, and whoever comes next starts a watcher of their own.
    async fn is_empty(&self) -> bool {
        let mut watcher = self.watcher.lock().await;
        let empty = self.queue.is_empty();
        if empty {
            *watcher = None;
        }
        empty
    }
}
