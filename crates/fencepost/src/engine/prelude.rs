//! Work committed even if the op is refused: renewing the caller's lease and its agent's presence, expiring dead runs.
//!
//! A refused op's savepoint undoes everything in it, so this work runs before the op, in a savepoint or transaction of
//! its own. One read at the opening shows whether there is any; most of the time there is none, and nothing is written.

use super::op::{AnyOp, digest};
use crate::{
    caller::Caller,
    clock::{Millis, Time},
    db::{
        Answer, AnyReply, Batch, BoxFuture, Due, Opening, PreludeWork, Repeat, Row, RunRow, Scope, Script,
        Slot, Stmt, Tx,
    },
    error::{Error, Result},
    ids::Resource,
    lease::{Nouns, ending, expiry, run},
    limits::{TTL_MAX, TTL_MIN, check},
    params,
};
use std::sync::Arc;

/// The work before an op: which run's lease it renews, whether it expires dead runs, and the op's opening reads.
#[derive(Debug, Clone, Default)]
pub struct Prelude {
    /// The op claims items, so expiry first gives back the items of dead runs.
    expires: Option<&'static Nouns>,
    /// The op needs the next deadline.
    reads_due: bool,
    renews: Option<Renews>,
    request: Option<String>,
    /// Of the request under that id.
    fingerprint: Fingerprint,
    /// The op's own opening reads.
    reads: Vec<Stmt>,
    /// The op's own write, made from the first row of one of these reads.
    keeps: Option<(Slot, Keep)>,
    /// The op declares that the fleet was restored here.
    declares_restore: bool,
}

/// The write that is due, if one is: from a row, for this caller, now.
pub(crate) type Keep = fn(&Row, &Caller, Time) -> Result<Option<Stmt>>;

/// The run whose lease is renewed.
#[derive(Debug, Clone)]
enum Renews {
    /// The run of this name. If its lease is over, that incarnation ends, and a new one may begin.
    Named { name: String, ttl: Option<Millis> },
    /// The run that holds a claim. The statement reads it by the token.
    Holder { token: Stmt, ttl: Option<Millis> },
}

/// Identifies a request: a second request under the same id must have the same one.
#[derive(Debug, Clone, Default)]
struct Fingerprint {
    op: &'static str,
    /// The name of the caller's key; empty without one.
    key: String,
    /// The digest of op, key and request. `None` if the request cannot be read: the op refuses it.
    digest: Option<String>,
}

impl Fingerprint {
    /// The form that events store.
    fn text(&self) -> Option<String> {
        Some(format!("{} {} {}", self.op, self.digest.as_ref()?, self.key))
    }
}

impl Prelude {
    pub fn nothing() -> Self {
        Self::default()
    }
    /// For an op that needs the next deadline.
    pub fn due() -> Self {
        Self { reads_due: true, ..Self::default() }
    }
    /// For the op that declares that the fleet was restored here. Until then every other op is refused.
    pub(crate) fn declares_restore() -> Self {
        Self { declares_restore: true, ..Self::default() }
    }
    /// For an op that claims items.
    pub(crate) fn expires(nouns: &'static Nouns) -> Self {
        Self { expires: Some(nouns), reads_due: true, ..Self::default() }
    }
    /// The op first lets expiry change the items of dead runs.
    #[must_use]
    pub(crate) fn after_expiry(self, nouns: &'static Nouns) -> Self {
        Self { expires: Some(nouns), reads_due: true, ..self }
    }
    /// The op acts for the run of this name. (The op refuses a malformed name.)
    #[must_use]
    pub(crate) fn for_run(mut self, name: &str, ttl: Option<Millis>) -> Self {
        let is_name = run::check_name(name).is_ok();
        self.renews = is_name.then(|| Renews::Named { name: name.into(), ttl: within_limits(ttl) });
        self
    }
    /// The op acts for the run that holds a claim. The statement reads it by the token.
    #[must_use]
    pub(crate) fn for_holder(mut self, token: Option<Stmt>) -> Self {
        self.renews = token.map(|token| Renews::Holder { token, ttl: None });
        self
    }
    /// The op begins with these reads, which may take locks. On PostgreSQL they are sent with the other opening reads.
    #[must_use]
    pub(crate) fn reading(mut self, statements: Vec<Stmt>) -> Self {
        self.reads = statements;
        self
    }
    /// The op has a write of its own that is committed even if the op is refused. It is made from the first row of one of the
    /// opening reads.
    #[must_use]
    pub(crate) fn keeping(mut self, read: Slot, keep: Keep) -> Self {
        self.keeps = Some((read, keep));
        self
    }
    /// The run is renewed for at least this long.
    #[must_use]
    pub fn for_at_least(mut self, wanted: Option<Millis>) -> Self {
        if let Some(Renews::Named { ttl, .. } | Renews::Holder { ttl, .. }) = &mut self.renews {
            *ttl = within_limits(wanted);
        }
        self
    }
    /// The op has a request id: a repeated request gets the first one's reply. (The op refuses a malformed id.)
    #[must_use]
    pub fn once(mut self, request: Option<&str>) -> Self {
        self.request = request.filter(|id| check::request(Some(id)).is_ok()).map(str::to_owned);
        self
    }
    /// The prelude of an op, for this caller.
    pub(crate) fn of(op: &dyn AnyOp, caller: &Caller) -> Self {
        let mut prelude = op.prelude();
        // A read shows the state that expiry would write now, so it needs the deadline.
        prelude.reads_due |= op.reads();
        if prelude.request.is_some() {
            let key = caller.key.as_ref().map_or_else(String::new, |key| key.name.clone());
            prelude.fingerprint = Fingerprint { op: op.name(), digest: digest(op, &key), key };
        }
        prelude
    }
    /// Whether the op claims items.
    pub(crate) fn claims_things(&self) -> bool {
        self.expires.is_some()
    }

    /// The opening reads. On PostgreSQL, calls with the same request id wait for each other here: a retry on
    /// another node must see the commit of its first attempt.
    fn statements(&self) -> Vec<Stmt> {
        let mut statements = Vec::with_capacity(3);
        if let Some(request) = &self.request {
            statements.push(Stmt::lock(
                "select pg_advisory_xact_lock(hashtextextended(current_schema() || ' ' || ?2 || ' ' || ?1, 0)) is null",
                params![request, &self.fingerprint.key],
            ));
            statements.push(Stmt::read(
                "select kind, resource, fence, run, at, asked from event where request = ?1 order by id",
                params![request],
            ));
        }
        // The op's own reads come before the run: a run that they lock is then read in its final state.
        statements.extend(self.reads.iter().cloned());
        statements.extend(self.renews.as_ref().map(|renews| match renews {
            Renews::Named { name, .. } => Stmt::read(run::BY_NAME, params![name]),
            Renews::Holder { token, .. } => token.clone(),
        }));
        statements
    }

    /// Reads the answers to [`Self::statements`], in the same order.
    fn read(&self, due: Option<Due>, answers: Vec<Answer>) -> Result<Opening> {
        let mut answers = answers.into_iter();
        let (request, fingerprint) = (self.request.clone(), self.fingerprint.text());
        let due_unknown = due.is_none();
        let due = due.unwrap_or_default();
        let mut opening = Opening { due, due_unknown, request, fingerprint, ..Opening::default() };
        if self.request.is_some() {
            answers.next();
            for row in answers.next().unwrap_or_default().rows {
                opening.repeat.push(Repeat {
                    kind: row.get("kind")?,
                    resource: row.get("resource")?,
                    fence: row.get("fence")?,
                    run: row.get("run")?,
                    at: row.get("at")?,
                    fingerprint: row.get("asked")?,
                });
            }
        }
        // The same id under another key is another id.
        let is_own = |stored: &str| stored.splitn(3, ' ').nth(2) == Some(&self.fingerprint.key);
        opening.repeat.retain(|did| did.fingerprint.as_deref().is_none_or(is_own));
        opening.forget_undelivered();
        opening.read = answers.by_ref().take(self.reads.len()).collect();
        if self.renews.is_some() {
            let rows = answers.next().unwrap_or_default().rows;
            opening.run = rows.first().map(RunRow::read).transpose()?;
        }
        Ok(opening)
    }

    /// The change of the caller's run before the op. Refused if the request's id was used for another request, or if
    /// the caller may not use the run. (The name of an expired run is free for every caller.)
    fn run_change(&self, opening: &Opening, caller: &Caller, now: Time) -> Result<Option<RunChange>> {
        opening.refuse_reused_id()?;
        let (Some(renews), Some(run)) = (&self.renews, &opening.run) else { return Ok(None) };
        let (by_name, wanted) = match renews {
            Renews::Named { ttl, .. } => (true, *ttl),
            Renews::Holder { ttl, .. } => (false, *ttl),
        };
        if !by_name || run.is_alive(now) {
            caller.may_use(&run.name, run.agent.as_deref())?;
        }
        Ok(match run.is_alive(now) {
            true => run.renewal(wanted, now).map(|ttl| RunChange::Renew { key: run.key, ttl }),
            false => by_name.then_some(RunChange::End { key: run.key }),
        })
    }
}

impl Prelude {
    /// The op's own write, if it is due.
    fn kept(&self, opening: &Opening, caller: &Caller, now: Time) -> Result<Option<Stmt>> {
        let Some((read, keep)) = self.keeps else { return Ok(None) };
        read.first_row(&opening.read).map_or(Ok(None), |row| keep(row, caller, now))
    }
}

/// Ignores a lease outside of the limits: the op refuses it, and the run must not be renewed for that long before.
fn within_limits(ttl: Option<Millis>) -> Option<Millis> {
    ttl.filter(|ttl| (TTL_MIN..=TTL_MAX).contains(ttl))
}

/// The change of the caller's run before the op.
#[derive(Debug, Clone, Copy)]
enum RunChange {
    Renew {
        key: i64,
        ttl: Millis,
    },
    /// Its lease is over: that incarnation ends, and a new one may begin.
    End {
        key: i64,
    },
}

impl RunChange {
    async fn apply(self, tx: &mut Tx<'_>) -> Result<()> {
        // These events get no request id: with it, a retry would take them for the result of the request.
        let request = tx.opening.request.take();
        match self {
            RunChange::Renew { key, ttl } => run::renew(tx, key, ttl).await.map(drop)?,
            RunChange::End { key } => ending::end_expired(tx, key).await?,
        }
        tx.opening.request = request;
        Ok(())
    }
}

/// Work for one transaction.
pub(crate) type Work =
    Arc<dyn for<'t, 'd> Fn(&'t mut Tx<'d>) -> BoxFuture<'t, Result<AnyReply>> + Send + Sync + 'static>;

/// Work with the type of its result erased; [`typed`](super::op::typed) restores it.
pub(crate) fn work<T: Send + 'static>(
    run: impl for<'t, 'd> Fn(&'t mut Tx<'d>) -> BoxFuture<'t, Result<T>> + Send + Sync + 'static,
) -> Work {
    Arc::new(move |tx| {
        let run = run(tx);
        Box::pin(async move { Ok(Box::new(run.await?) as AnyReply) })
    })
}

/// One call for a store: its prelude and its work.
pub(crate) struct Call {
    pub prelude: Prelude,
    pub caller: Caller,
    pub scope: Scope,
    pub probe_only: bool,
    pub work: Work,
}

impl Call {
    pub fn new(prelude: Prelude, caller: Caller, work: Work) -> Self {
        Self { prelude, caller, scope: Scope::Call, probe_only: false, work }
    }
}

impl Script for Call {
    fn caller(&self) -> &Caller {
        &self.caller
    }
    fn reads(&self) -> Vec<Stmt> {
        self.prelude.statements()
    }
    fn reads_due(&self) -> bool {
        self.prelude.reads_due
    }
    fn opening(&self, due: Option<Due>, answers: Vec<Answer>) -> Result<Opening> {
        let Call { scope, probe_only, .. } = *self;
        Ok(Opening { scope, probe_only, ..self.prelude.read(due, answers)? })
    }
    fn prelude_work(&self, opening: &Opening, now: Time) -> Result<PreludeWork> {
        let renew = self.prelude.run_change(opening, &self.caller, now)?.is_some()
            || self.prelude.kept(opening, &self.caller, now)?.is_some();
        Ok(PreludeWork { renew, expire: self.prelude.claims_things() && opening.due.is_due(now) })
    }
    fn renew<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<()>> {
        Box::pin(async move {
            let kept = self.prelude.kept(&tx.opening, &tx.caller, tx.now)?;
            if let Some(change) = self.prelude.run_change(&tx.opening, &tx.caller, tx.now)? {
                change.apply(tx).await?;
            }
            if let Some(kept) = kept {
                tx.one(kept).await?;
            }
            Ok(())
        })
    }
    fn expire<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<u64>> {
        Box::pin(async move {
            match self.prelude.expires {
                Some(nouns) => expiry::sweep(tx, nouns).await,
                None => Ok(0),
            }
        })
    }
    fn run<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<AnyReply>> {
        (self.work)(tx)
    }
    fn declares_restore(&self) -> bool {
        self.prelude.declares_restore
    }
}

impl Opening {
    /// Whether this request was made before. Refuses an id that was used for another request.
    pub fn is_repeat(&self, kind: &str, resource: Option<&Resource>) -> Result<bool> {
        self.is_repeat_by(None, kind, resource)
    }

    /// Like [`Self::is_repeat`], for a claim by this run: another run's claim is no reply to it.
    pub fn is_repeat_by(&self, run: Option<&str>, kind: &str, resource: Option<&Resource>) -> Result<bool> {
        let resource = resource.map(ToString::to_string);
        let same = |did: &Repeat| {
            did.kind == kind
                && resource.as_ref().is_none_or(|this| did.resource == *this)
                && run.is_none_or(|this| did.run.as_deref() == Some(this))
        };
        match self.repeat.first() {
            None => Ok(false),
            Some(_) if self.repeat.iter().any(same) => Ok(true),
            Some(did) => Err(Error::invalid(
                "request",
                format!("was already used for another request: `{}` of `{}`", did.kind, did.resource),
            )
            .hint("give every request an id of its own, and repeat it only with the same request")),
        }
    }
}

impl Opening {
    /// Refuses an id that was used with other content. (Events of earlier versions have no fingerprint: the op compares
    /// their other fields.)
    fn refuse_reused_id(&self) -> Result<()> {
        let own = self.fingerprint.as_deref();
        let other =
            self.repeat.iter().find(|did| did.fingerprint.is_some() && did.fingerprint.as_deref() != own);
        let Some(did) = other else { return Ok(()) };
        let op = did.fingerprint.as_deref().and_then(|stored| stored.split(' ').next()).unwrap_or_default();
        let message =
            format!("was used before with other content: by {op}, of `{}`, at {}", did.resource, did.at);
        Err(Error::invalid("request", message)
            .with("op", op)
            .with("resource", &did.resource)
            .with("at", did.at)
            .hint("give every request an id of its own, and repeat it only with the same request"))
    }

    /// Ignores claims that were given back because they were not delivered: the request starts over.
    fn forget_undelivered(&mut self) {
        let is = |did: &Repeat, end: &str| did.kind.ends_with(end);
        let given_back: Vec<_> = self.repeat.iter().filter(|did| is(did, ".undelivered")).cloned().collect();
        if given_back.is_empty() {
            return;
        }
        self.repeat.retain(|did| {
            !given_back.iter().any(|back| back.resource == did.resource && back.fence == did.fence)
        });
        if !self.repeat.iter().any(|did| is(did, ".claimed")) {
            self.repeat.clear();
        }
    }
}

impl Tx<'_> {
    /// Opens an op in a transaction that is already open. Its prelude runs in the same transaction, with at most one
    /// batch of expiry.
    pub(crate) async fn open(&mut self, prelude: &Prelude) -> Result<()> {
        self.read_opening(prelude).await?;
        let change = prelude.run_change(&self.opening, &self.caller, self.now)?;
        let kept = prelude.kept(&self.opening, &self.caller, self.now)?;
        let expires = prelude.expires.filter(|_| self.opening.due.is_due(self.now));
        if change.is_none() && kept.is_none() && expires.is_none() {
            return Ok(());
        }
        if let Some(change) = change {
            change.apply(self).await?;
        }
        if let Some(kept) = kept {
            self.one(kept).await?;
        }
        if let Some(nouns) = expires {
            self.expire(nouns).await?;
        }
        self.read_opening(prelude).await
    }

    /// Runs one batch of expiry. If it fails, its changes are undone and the transaction goes on.
    async fn expire(&mut self, nouns: &'static Nouns) -> Result<()> {
        // The events of expiry belong neither to the request nor to the caller.
        let (request, caller) = (self.opening.request.take(), std::mem::take(&mut self.caller));
        self.execute("savepoint expiry", params![]).await?;
        let expired = expiry::sweep(self, nouns).await;
        (self.opening.request, self.caller) = (request, caller);
        if let Err(error) = expired {
            tracing::warn!("a batch of expiry failed: {error}");
            self.execute("rollback to savepoint expiry", params![]).await?;
        }
        self.execute("release savepoint expiry", params![]).await.map(drop)
    }

    async fn read_opening(&mut self, prelude: &Prelude) -> Result<()> {
        let mut batch: Batch = prelude.statements().into_iter().collect();
        let due = prelude.reads_due.then(|| batch.add(Stmt::read(self.reads_due(), params![])));
        let mut answers = self.send(batch).await?;
        let due = due.map(|due| Due::read(&answers.take(due))).transpose()?;
        let Opening { scope, probe_only, epoch, ahead, .. } = self.opening;
        self.opening = Opening { scope, probe_only, epoch, ahead, ..prelude.read(due, answers.into_vec())? };
        Ok(())
    }

    /// Whether something is due. For an op that needs this only sometimes, when its opening did not read it.
    pub(crate) async fn is_due(&mut self) -> Result<bool> {
        if std::mem::take(&mut self.opening.due_unknown) {
            let read = Stmt::read(self.reads_due(), params![]);
            self.opening.due = Due::read(&self.one(read).await?)?;
        }
        Ok(self.opening.due.is_due(self.now))
    }
}
