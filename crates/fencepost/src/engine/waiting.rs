//! Waiting calls, and the watcher that wakes them.
//!
//! A waiting call registers, runs the op, and on a not-yet reply sleeps until a relevant event, a deadline or its
//! timeout. Every change that could turn a not-yet into a success writes an event, so the log is the one thing to
//! watch. One watcher asks for news for all waiters of this process: after a commit of this process, when another node
//! notifies us (PostgreSQL), and at the database's own pace in any case. While no call waits there is no watcher, and
//! while nothing happens no waiter makes an attempt.
//!
//! News does not wake every waiter: see [`queue`]. A deadline does not either: the watcher runs expiry once for all
//! waiters, and the events of that expiry are the news.

mod queue;

use super::{
    op::typed,
    prelude::{Call, Prelude, work},
};
use crate::{
    backoff::jitter,
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

/// The watcher's pause after news, so that several commits cause one wake.
const WAKE_PAUSE: Duration = Duration::from_millis(1);
/// The pause before another attempt to expire something that is due and that another transaction has locked: no event
/// announces the end of that transaction.
const RETRY_OVERDUE: Duration = Duration::from_millis(100);

/// About how long a waiter pauses when the database did not answer its attempt. The watcher wakes the others when it
/// answers.
const RETRY_OUTAGE: Duration = Duration::from_millis(500);

/// A process that was granted a resource this often in a row, while others wait for it, lets one of them go first. With
/// two processes and 4 instead of 16, neither share changed (both about 40 %), and there were fewer grants in all (288 a second
/// instead of 325).
const GRANTS_IN_A_ROW: i32 = 16;
/// How often it checks whether another process got the resource, and the pause between two checks.
const CHECKS_MAX: u32 = 500;
const CHECK_EVERY: Duration = Duration::from_millis(10);
/// If no other process took the resource meanwhile, they may be frozen: they go first again only after this many grants
/// more.
const GRANTS_AFTER_VAIN_WAIT: i32 = 1000;
/// The most resources whose grants are counted.
const COUNTED_MAX: usize = 1000;

/// The waiters on one fleet in this process.
#[derive(Debug)]
pub(crate) struct Waiters {
    store: Arc<Store>,
    clock: Clock,
    nouns: &'static Nouns,
    queue: Queue,
    /// Something was committed here.
    committed: Notify,
    /// The earliest deadline that a waiter reported, in ticks.
    deadline: StdMutex<Option<i64>>,
    deadline_changed: Notify,
    watcher: Mutex<Option<JoinHandle<()>>>,
    /// The number of waiters that made an attempt and sleep now.
    sleeping: AtomicU64,
    grants: StdMutex<HashMap<Resource, Grants>>,
}

/// The grants of one resource to this process.
#[derive(Debug, Clone, Copy, Default)]
struct Grants {
    last_fence: i64,
    /// The number of grants in a row. Negative after a vain wait for others.
    in_a_row: i32,
}

/// A sleeping waiter, counted until this is dropped.
struct Sleeping<'a>(&'a AtomicU64);

impl<'a> Sleeping<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How an attempt of a call is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttemptMode {
    /// The caller is still waiting and discards a not-yet reply.
    pub probe_only: bool,
    /// Time has passed since the caller's key was checked.
    pub has_waited: bool,
}

impl AttemptMode {
    /// The only attempt of a call that does not wait.
    pub const ONLY: AttemptMode = AttemptMode { probe_only: false, has_waited: false };
}

/// The result of one attempt.
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
            deadline: StdMutex::default(),
            deadline_changed: Notify::new(),
            watcher: Mutex::default(),
            sleeping: AtomicU64::new(0),
            grants: StdMutex::default(),
        })
    }

    /// The number of sleeping waiters.
    pub fn count(&self) -> u64 {
        self.sleeping.load(Ordering::SeqCst)
    }

    /// Something was committed here: the watcher, if there is one, asks for news at once.
    pub fn committed(&self) {
        if !self.store.notifies_itself() && !self.queue.is_empty() {
            self.committed.notify_one();
        }
    }

    /// Counts the grants in a row of a resource to this process: between two consecutive fences no other process had
    /// it.
    pub fn granted(&self, resource: Option<&Resource>, delivered: &[Delivered]) {
        let Some(resource) = resource else { return };
        for Delivered { token, .. } in
            delivered.iter().filter(|delivered| delivered.token.resource == *resource)
        {
            let mut all = lock(&self.grants);
            if all.len() >= COUNTED_MAX && !all.contains_key(resource) {
                all.clear();
            }
            let grants = all.entry(resource.clone()).or_default();
            let is_next = token.fence == grants.last_fence + 1;
            grants.in_a_row = if is_next { grants.in_a_row.saturating_add(1) } else { 1 };
            grants.last_fence = token.fence;
        }
    }

    /// Pauses if this process was granted a resource too often in a row and another process waits for it. The pause
    /// ends when another process got it, when no other process waits for it, or at the timeout of this waiter. Returns
    /// whether it paused.
    async fn let_others_first(&self, resource: &Resource, end: i64) -> bool {
        let text = resource.to_string();
        for checks in 0..CHECKS_MAX {
            let grants = lock(&self.grants).get(resource).copied();
            let Some(grants) = grants.filter(|grants| grants.in_a_row >= GRANTS_IN_A_ROW) else {
                return checks > 0;
            };
            let done = !self.store.others_wait_for(&text)
                || self.last_fence(resource).await.ok().flatten() != Some(grants.last_fence);
            if done {
                lock(&self.grants).remove(resource);
                return checks > 0;
            }
            if self.clock.ticks() >= end {
                return checks > 0;
            }
            // Real time: it paces processes, and decides no lease.
            sleep(CHECK_EVERY).await;
        }
        if let Some(grants) = lock(&self.grants).get_mut(resource) {
            grants.in_a_row = -GRANTS_AFTER_VAIN_WAIT;
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

    /// Makes attempts until the answer is no longer a not-yet, or the timeout is over. The last attempt is at the end
    /// of the timeout or later; the attempts before it only probe. If the database does not answer, a call that has
    /// waited goes on waiting, and a new one fails at once.
    pub async fn wait<T, A: Future<Output = Attempt<T>>>(
        self: &Arc<Self>,
        resource: Option<Resource>,
        wait: Millis,
        attempt: impl Fn(AttemptMode) -> A,
    ) -> Result<T> {
        let end = self.clock.ticks().saturating_add(wait.0);
        // Registered before the attempt: a commit in between wakes it.
        let mut ticket = self.enter().await;
        let mut has_waited = false;
        // Kept during attempts as well: this call waits for the resource until it is granted.
        let mut wait_mark = None;
        loop {
            if let Some(resource) = &resource {
                has_waited |= self.let_others_first(resource, end).await;
            }
            ticket.begin();
            // Read before the attempt: counted from here, a deadline is reached early rather than slept through.
            let from = self.clock.ticks();
            let probe_only = from < end;
            let Attempt { answer, not_yet, mut notes } =
                attempt(AttemptMode { probe_only, has_waited }).await;
            if probe_only && has_waited && answer.as_ref().is_err_and(Error::is_outage) {
                let _sleeping = Sleeping::new(&self.sleeping);
                tokio::select! {
                    () = ticket.woken() => {}
                    // Real time: it paces attempts, and decides no lease.
                    () = sleep(jitter(RETRY_OUTAGE)) => {}
                }
                continue;
            }
            if !probe_only || !not_yet {
                return answer;
            }
            has_waited = true;
            if wait_mark.is_none() {
                wait_mark =
                    resource.as_ref().and_then(|resource| self.store.mark_waiting(&resource.to_string()));
            }
            let subscriptions = std::mem::take(&mut notes.subscriptions);
            let due = notes.until(notes.try_again_at).map(|span| from.saturating_add(span.0));
            let overdue = due.is_some_and(|due| due <= from);
            // The watcher keeps the deadlines of all claims; a reader keeps its own.
            let own = notes.until(notes.own_deadline);
            let own = own.map_or(end, |span| end.min(from.saturating_add(span.0.max(1))));
            let own = due.filter(|_| subscriptions.is_empty()).map_or(own, |due| own.min(due));
            if let Some(due) = due.filter(|_| !subscriptions.is_empty() && !overdue) {
                self.watch_deadline(due);
            }
            ticket.found_nothing(subscriptions, !overdue);
            let _sleeping = Sleeping::new(&self.sleeping);
            tokio::select! {
                () = ticket.woken() => {}
                // Real time: a test's clock may stand still.
                () = sleep(RETRY_OVERDUE), if overdue => {}
                () = self.clock.until(own), if own > from => {}
            }
        }
    }

    /// The watcher runs expiry at this tick.
    fn watch_deadline(&self, at: i64) {
        let mut deadline = lock(&self.deadline);
        if deadline.is_none_or(|deadline| at < deadline) {
            *deadline = Some(at);
            self.deadline_changed.notify_one();
        }
    }

    async fn enter(self: &Arc<Self>) -> Ticket<'_> {
        let mut watcher = self.watcher.lock().await;
        let ticket = self.queue.enter();
        // A watcher also ends with its runtime.
        if watcher.as_ref().is_none_or(JoinHandle::is_finished) {
            // Only later events are news. If the database does not answer, the attempt that follows reports it.
            let _ = self.store.news().await;
            self.store.listen();
            *watcher = Some(tokio::spawn(self.clone().watch()));
        }
        ticket
    }

    /// Watches the log and the deadlines for all waiters, until no call waits.
    async fn watch(self: Arc<Self>) {
        let mut pause = self.store.pace().least;
        // Real time: it paces questions, and decides no lease.
        let (mut asked, mut woke_all) = (Instant::now(), Instant::now());
        // Something is due that another transaction has locked.
        let mut overdue = false;
        let mut outage = false;
        loop {
            let deadline = *lock(&self.deadline);
            tokio::select! {
                () = self.queue.emptied() => {
                    if self.is_empty().await {
                        return;
                    }
                    continue;
                }
                () = self.deadline_changed.notified() => continue,
                () = self.clock.until(deadline.unwrap_or(i64::MAX)), if deadline.is_some() => {
                    overdue = self.expire(deadline).await;
                    continue;
                }
                () = sleep(RETRY_OVERDUE), if overdue => {
                    overdue = self.expire(None).await;
                    continue;
                }
                () = self.committed.notified() => {}
                () = self.store.notified() => {}
                () = sleep_until(asked + pause) => {}
            }
            // During an outage no waiter makes an attempt. Notifications may be lost, so all are woken after it.
            let news = match self.store.news().await {
                Err(error) if error.is_outage() => {
                    if !std::mem::replace(&mut outage, true) {
                        tracing::warn!(
                            "waiting calls go on waiting while the database does not answer: {error}"
                        );
                    }
                    News::Nothing
                }
                // The waiters make an attempt, and get the error.
                Err(_) => News::OfAll,
                Ok(_) if std::mem::take(&mut outage) => News::OfAll,
                Ok(news) => news,
            };
            let pace = self.store.pace();
            let wake_all = !outage && woke_all.elapsed() >= pace.wake_all;
            let news = if wake_all { News::OfAll } else { news };
            if news != News::Nothing {
                pause = pace.least;
                // News of some topics does not wake the waiters of the others.
                if news == News::OfAll {
                    woke_all = Instant::now();
                }
                self.queue.wake(&news);
                if news.leaves_something_due() {
                    overdue = self.expire(None).await;
                }
                sleep(WAKE_PAUSE).await;
            } else {
                pause = pace.longer(pause);
            }
            // Jitter, so that the watchers of several processes do not stay in step.
            asked = Instant::now() + pause.mul_f64(fastrand::f64() / 5.0);
        }
    }

    /// Runs expiry, as the next claim would: one transaction here instead of an attempt by each waiter. Returns
    /// whether something is still due, because another transaction has locked it or the database does not answer.
    async fn expire(&self, at: Option<i64>) -> bool {
        lock(&self.deadline).take_if(|deadline| Some(*deadline) == at);
        let from = self.clock.ticks();
        let next = self.expire_all().await;
        self.committed.notify_one();
        match next {
            Ok(Some(Millis(0))) => true,
            Err(error) => {
                // The waiters make an attempt, and get the error. During an outage they sleep on.
                if !error.is_outage() {
                    self.queue.wake(&News::OfAll);
                }
                true
            }
            Ok(next) => {
                next.into_iter().for_each(|span| self.watch_deadline(from.saturating_add(span.0)));
                false
            }
        }
    }

    /// Expires everything that is due and not locked by another transaction. Returns the span until the next
    /// deadline: zero if something is still due.
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

    /// No waiter is left. The next waiter starts a new watcher.
    async fn is_empty(&self) -> bool {
        let mut watcher = self.watcher.lock().await;
        let empty = self.queue.is_empty();
        if empty {
            *watcher = None;
        }
        empty
    }
}
