//! A fleet: one database and everything in it.
//!
//! Every crate that awaits an `async fn` compiles its body. So a large future that other crates await is a
//! [`BoxFuture`] made here.

use super::{
    delivery::Delivery,
    op::{AnyOp, Op, typed},
    prelude::{Call, Prelude, Work, work},
    run_to_end::RunToEnd,
    waiting::{Attempt, AttemptMode, Waiters},
};
use crate::{
    caller::{Access, Caller, Key},
    db::{
        AnyReply, BoxFuture, Delivered, Outcome, Scope, Store, Tx,
        options::Options,
        stats::{Counts, Stats},
    },
    error::Result,
    lease::{Nouns, delivery},
    limits::check,
    log::access,
};
use std::{path::Path, sync::Arc};

/// One database and everything in it. Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub struct Fleet {
    store: Arc<Store>,
    waiters: Arc<Waiters>,
    stats: Arc<Stats>,
    nouns: &'static Nouns,
    caller: Caller,
}

impl Fleet {
    /// Opens a fleet with these claimable nouns.
    pub(crate) fn open_nouns<'a>(
        url: &'a str,
        options: Options,
        nouns: &'static Nouns,
    ) -> BoxFuture<'a, Result<Self>> {
        Box::pin(async move {
            let stats = Arc::new(Stats::default());
            let clock = options.clock.clone();
            let store = Arc::new(Store::open(url, options, stats.clone(), nouns.due).await?);
            let waiters = Waiters::new(store.clone(), clock, nouns);
            Ok(Self { store, waiters, stats, nouns, caller: Caller::default() })
        })
    }

    /// The same fleet, called by this agent: events record it. (A caller with an agent's key stays that agent.)
    #[must_use]
    pub fn as_agent(&self, agent: impl Into<String>) -> Self {
        let agent = self.caller.key_agent().map_or_else(|| agent.into(), str::to_owned);
        Self { caller: Caller { agent: Some(agent), ..self.caller.clone() }, ..self.clone() }
    }

    /// The same fleet, called from within this run: posts, messages and tasks of these calls record it as their cause, if the run
    /// is the caller's own.
    #[must_use]
    pub fn in_run(&self, run: impl Into<String>) -> Self {
        Self { caller: Caller { run: Some(run.into()), ..self.caller.clone() }, ..self.clone() }
    }

    /// The key with this secret, unless it was revoked.
    pub fn key(&self, secret: &str) -> BoxFuture<'_, Result<Option<Key>>> {
        let secret = secret.to_owned();
        let find = work(move |tx| {
            let secret = secret.clone();
            Box::pin(async move { access::find(tx, &secret).await })
        });
        Box::pin(async move { typed(self.read(Caller::default(), find).await.answer?) })
    }

    /// The [digests](crate::key::digest) of at most this many keys that were not revoked.
    pub fn live_keys(&self, limit: i64) -> BoxFuture<'_, Result<Vec<String>>> {
        let live = work(move |tx| Box::pin(access::live(tx, limit)));
        Box::pin(async move { typed(self.read(Caller::default(), live).await.answer?) })
    }

    /// Whether remote callers need a key: they do if the fleet has one, or once had one.
    pub fn requires_key(&self) -> BoxFuture<'_, Result<bool>> {
        let keyed = work(|tx| Box::pin(access::is_keyed(tx)));
        Box::pin(async move { typed(self.read(Caller::default(), keyed).await.answer?) })
    }

    /// The same fleet, called with this key: a call that the key does not allow is refused with `forbidden`.
    #[must_use]
    pub fn as_key(&self, key: &Key) -> Self {
        let caller =
            Caller { agent: key.agent.clone(), key: Some(Arc::new(key.clone())), ..Caller::default() };
        Self { caller, ..self.clone() }
    }

    /// The same fleet, called remotely without a key. A guest that waits is refused as soon as the fleet has a key.
    #[must_use]
    pub fn as_guest(&self) -> Self {
        Self { caller: Caller { is_guest: true, ..Caller::default() }, ..self.clone() }
    }

    /// Refuses a caller whose key does not have this role.
    pub(crate) fn may(&self, what: &str, access: Access) -> Result<()> {
        self.caller.may(what, access)
    }

    /// Runs one op in a transaction of its own. An op with `wait_ms` is attempted until its answer is no longer a
    /// not-yet or its timeout is over. Drop the future to stop waiting.
    pub async fn call<O: Op>(&self, op: O) -> Result<O::Reply> {
        typed(self.call_any(op.erase()).await?)
    }

    /// The same as [`Self::call`], for a caller that may hang up at any moment. The call's claims are given back unless
    /// [`Delivery::delivered`] is called, even if the call is dropped during its commit.
    pub async fn deliver<O: Op>(&self, op: O) -> Result<(O::Reply, Delivery)> {
        let (reply, delivery) = self.deliver_any(op.erase()).await?;
        Ok((typed(reply)?, delivery))
    }

    fn call_any(&self, op: Arc<dyn AnyOp>) -> BoxFuture<'_, Result<AnyReply>> {
        Box::pin(async move {
            self.may(op.name(), op.access())?;
            let Some(wait) = op.wait() else {
                if op.peeks() || op.prelude().claims_things() {
                    return Box::pin(self.attempt(op, AttemptMode::ONLY)).await.answer;
                }
                return self.run(&*op.clone(), false, Arc::new(move |tx| op.run(tx))).await.answer;
            };
            check::wait(wait)?;
            Box::pin(self.waiters.wait(op.contended(), wait, |mode| self.attempt(op.clone(), mode))).await
        })
    }

    /// [`Self::deliver`] with the types erased.
    pub fn deliver_any(&self, op: Arc<dyn AnyOp>) -> BoxFuture<'_, Result<(AnyReply, Delivery)>> {
        Box::pin(async move {
            if !op.prelude().claims_things() {
                return Ok((self.call_any(op).await?, Delivery::new(self.clone(), Vec::new())));
            }
            self.may(op.name(), op.access())?;
            let Some(wait) = op.wait() else {
                return self.attempt_to_deliver(op, AttemptMode::ONLY).await.answer;
            };
            check::wait(wait)?;
            let attempt = |mode| self.attempt_to_deliver(op.clone(), mode);
            Box::pin(self.waiters.wait(op.contended(), wait, attempt)).await
        })
    }

    /// Runs one attempt to its end. If the caller is gone by then, the delivery is dropped, which gives its claims
    /// back.
    async fn attempt_to_deliver(
        &self,
        op: Arc<dyn AnyOp>,
        mode: AttemptMode,
    ) -> Attempt<(AnyReply, Delivery)> {
        let fleet = self.clone();
        let attempt = RunToEnd::new(async move {
            let Attempt { answer, not_yet, mut notes } = fleet.attempt(op, mode).await;
            let delivered = std::mem::take(&mut notes.delivered);
            let answer = answer.map(|reply| (reply, Delivery::new(fleet, delivered)));
            Attempt { answer, not_yet, notes }
        });
        attempt.await.unwrap_or_else(Attempt::failed)
    }

    /// Gives back the claims of one reply, except those that a later reply delivered. Returns their number.
    pub(crate) async fn return_undelivered(&self, delivered: Vec<Delivered>) -> Result<u64> {
        let nouns = self.nouns;
        let give_back = work(move |tx| {
            let delivered = delivered.clone();
            Box::pin(async move { delivery::return_undelivered(tx, nouns, &delivered).await })
        });
        let call = Call::new(Prelude::nothing(), self.caller.clone(), give_back);
        typed(self.write(call).await.answer?)
    }

    async fn write(&self, call: Call) -> Outcome {
        let outcome = self.store.write(Arc::new(call)).await;
        if outcome.answer.is_ok() {
            self.waiters.committed();
        }
        outcome
    }

    async fn read(&self, caller: Caller, work: Work) -> Outcome {
        self.store.read(Arc::new(Call::new(Prelude::due(), caller, work))).await
    }

    /// Runs an op's work: on a reader if the op only reads, or else on the writer.
    async fn run(&self, op: &dyn AnyOp, probe_only: bool, work: Work) -> Outcome {
        let call = Call::new(Prelude::of(op, &self.caller), self.caller.clone(), work);
        let call = Call { probe_only, ..call };
        if op.reads() { self.store.read(Arc::new(call)).await } else { self.write(call).await }
    }

    /// One attempt of an op that may have to wait. While expiry has more to do, an attempt that finds nothing is
    /// repeated, until it finds something or a batch of expiry changes nothing. Each repetition is a transaction of its
    /// own, so that other calls run in between. On a store with one writer, a read first checks whether there is
    /// anything to do.
    async fn attempt(&self, op: Arc<dyn AnyOp>, mode: AttemptMode) -> Attempt<AnyReply> {
        if op.peeks() && self.store.has_one_writer() {
            let peeking = op.clone();
            let peek = work(move |tx| {
                let op = peeking.clone();
                Box::pin(async move { op.peek(tx).await })
            });
            let Outcome { answer, notes } = self.read(self.caller.clone(), peek).await;
            match answer.and_then(typed::<Option<AnyReply>>) {
                Ok(None) => {}
                Ok(Some(reply)) => {
                    let answer = Ok(reply);
                    return Attempt { not_yet: op.not_yet(&answer), answer, notes };
                }
                Err(e) => {
                    let answer = Err(e);
                    return Attempt { not_yet: op.not_yet(&answer), answer, notes };
                }
            }
        }
        let running = op.clone();
        let work: Work = Arc::new(move |tx| {
            let op = running.clone();
            Box::pin(async move {
                let answer = op.run(tx).await;
                // Checked in the same transaction, so that a revoked key claims nothing.
                if mode.has_waited
                    && !(mode.probe_only && op.not_yet(&answer))
                    && let Err(refusal) = access::check_admitted(tx).await
                {
                    tx.notes.delivered.clear();
                    return Err(refusal);
                }
                answer
            })
        });
        loop {
            let Outcome { answer, notes } = self.run(&*op, mode.probe_only, work.clone()).await;
            let not_yet = op.not_yet(&answer);
            if !(notes.more_to_expire && not_yet) {
                self.waiters.granted(op.contended().as_ref(), &notes.delivered);
                return Attempt { answer, not_yet, notes };
            }
        }
    }

    /// Runs several ops, and your own SQL, in one transaction: all of it is committed, or nothing.
    ///
    /// The work may run again if PostgreSQL asks for it, so it must have no effect elsewhere, and it may await nothing
    /// but the transaction. A completion that was already accepted before is an error here (`already_finished`, with
    /// `repeat: true`), so that your rows are not written twice.
    ///
    /// On PostgreSQL the work may pause for 10 s between two statements
    /// ([`Options::idle_limit`](crate::Options::idle_limit)). After a longer pause the server ends the transaction, the
    /// next statement fails, and the work runs again.
    ///
    /// On PostgreSQL its connections have `enable_seqscan` and `jit` off, also for your own SQL. If your SQL must read
    /// a large table of yours whole, put `options=-c enable_seqscan=on` into the address, or use `set local`.
    ///
    /// ```
    /// use fencepost::{Code, Fleet, Result, params, task};
    ///
    /// /// The charge and the completion commit together, and only while the claim is alive.
    /// async fn charge(fleet: &Fleet, token: &str) -> Result<i64> {
    ///     let token = token.to_owned();
    ///     fleet
    ///         .transaction(move |tx| {
    ///             let done = task::Done::new(&token);
    ///             Box::pin(async move {
    ///                 tx.execute("create table if not exists charge(card text, cents bigint)", params![]).await?;
    ///                 tx.execute("insert into charge(card, cents) values (?1, ?2)", params!["4242", 1999]).await?;
    ///                 tx.call(done).await?;
    ///                 tx.query("select count(*) as n from charge", params![]).await?[0].get::<i64>("n")
    ///             })
    ///         })
    ///         .await
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let url = dir.path().join("fence.db").display().to_string();
    /// let fleet = Fleet::open(&url).await?;
    /// fleet.call(task::Add::new("billing", "charge the card")).await?;
    /// let claimed = fleet.call(task::Claim::next("billing", "worker-1")).await?;
    /// assert_eq!(charge(&fleet, &claimed.claim.token).await?, 1);
    ///
    /// // A repeated completion is an error here, and the second charge is rolled back with it.
    /// let repeated = charge(&fleet, &claimed.claim.token).await.unwrap_err();
    /// assert_eq!(repeated.code(), Code::AlreadyFinished);
    /// assert_eq!(repeated.field("repeat"), Some(&true.into()));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn transaction<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'t, 'd> Fn(&'t mut Tx<'d>) -> BoxFuture<'t, Result<T>> + Send + Sync + 'static,
    {
        // A transaction can run any SQL.
        self.caller.may("a transaction", Access::Admin)?;
        typed(self.transaction_any(self::work(work)).await?)
    }

    fn transaction_any(&self, work: Work) -> BoxFuture<'_, Result<AnyReply>> {
        let call = Call::new(Prelude::nothing(), self.caller.clone(), work);
        let call = Call { scope: Scope::Embedded, ..call };
        Box::pin(async move { self.write(call).await.answer })
    }

    /// Copies a SQLite fleet to a new file while other processes use it. `pg_dump` backs up a PostgreSQL fleet.
    pub async fn backup(&self, to: &Path) -> Result<()> {
        self.may("a backup", Access::Admin)?;
        self.store.backup(to).await
    }

    /// Waits until other nodes are notified of this process's commits. Call it before a process ends: on PostgreSQL the
    /// notification is sent a moment after a commit, and without it other nodes notice the commit only after some
    /// seconds.
    pub fn flush(&self) -> BoxFuture<'_, ()> {
        self.store.flush()
    }

    /// Counts of this process's work on the database since it opened the fleet.
    pub fn stats(&self) -> Counts {
        Counts { waiting: self.waiters.count(), ..self.stats.read() }
    }
}
