//! What must outlast a refusal.
//!
//! A refused op's savepoint undoes everything in it. Being heard and giving back what the dead held must
//! stand all the same, so they are done before the op, on their own. One read at the start says whether
//! anything is due; most of the time nothing is, and nothing is written.

use crate::{
    clock::{Millis, Time},
    db::tx::{Answer, Caller, Stmt, Tx},
    engine::op::{AnyOp, digest},
    error::{Error, Result},
    names::{Resource, TTL_MAX, TTL_MIN, Token, check},
    ops::run,
    params,
};

/// What an op wants done, or looked up, before it runs.
#[derive(Debug, Clone, Default)]
pub struct Before {
    /// It takes things, so what the dead hold is given back first.
    settles: bool,
    /// It wants to know what is due.
    looks: bool,
    heard: Option<Heard>,
    request: Option<String>,
    /// What is asked under that id, and by whom.
    asked: Asked,
    /// What else it reads first.
    reads: Vec<Stmt>,
    /// It says that the fleet was restored here.
    restores: bool,
}

/// What is asked under a request id, and by whom.
#[derive(Debug, Clone, Default)]
struct Asked {
    op: &'static str,
    /// The name of the caller's key; empty without one.
    key: String,
    /// Of op, key and request. None if the request cannot be read: the op refuses it.
    digest: Option<String>,
}

impl Asked {
    /// As it is stored with the events.
    fn text(&self) -> Option<String> {
        Some(format!("{} {} {}", self.op, self.digest.as_ref()?, self.key))
    }
}

#[derive(Debug, Clone)]
enum Heard {
    Run { name: String, ttl: Option<Millis> },
    Token { token: Token, ttl: Option<Millis> },
}

impl Before {
    pub fn nothing() -> Self {
        Self::default()
    }
    /// For an op that only reads.
    pub fn looks() -> Self {
        Self { looks: true, ..Self::default() }
    }
    /// For the op that says that the fleet was restored here, which is refused to all others until then.
    pub(crate) fn restores() -> Self {
        Self { restores: true, ..Self::default() }
    }
    /// For an op that claims for a run. (A malformed name is the op's to refuse.)
    pub fn claims(run: &str, ttl: Option<Millis>) -> Self {
        let heard = run::check_name(run).is_ok().then(|| Heard::Run { name: run.into(), ttl: sane(ttl) });
        Self { settles: true, looks: true, heard, ..Self::default() }
    }
    /// For an op that takes things, for no run.
    pub fn takes() -> Self {
        Self { settles: true, looks: true, ..Self::default() }
    }
    /// For an op that only says that a run is there.
    pub fn hears(run: &str, ttl: Option<Millis>) -> Self {
        Self { settles: false, looks: false, ..Self::claims(run, ttl) }
    }
    /// For a writing op under a token. (A malformed one is the op's to refuse.)
    pub fn holds(token: &str) -> Self {
        let heard = token.parse().ok().map(|token| Heard::Token { token, ttl: None });
        Self { heard, ..Self::default() }
    }
    /// For an op that begins with reads of its own, and their locks: on PostgreSQL they go along with the others.
    #[must_use]
    pub(crate) fn reading(mut self, statements: Vec<Stmt>) -> Self {
        self.reads = statements;
        self
    }
    /// The run behind the token wants a lease of at least this.
    #[must_use]
    pub fn for_at_least(mut self, wanted: Option<Millis>) -> Self {
        if let Some(Heard::Run { ttl, .. } | Heard::Token { ttl, .. }) = &mut self.heard {
            *ttl = sane(wanted);
        }
        self
    }
    /// For an op that is answered from what the same request did before. (A malformed id is the op's to refuse.)
    #[must_use]
    pub fn once(mut self, request: Option<&str>) -> Self {
        self.request = request.filter(|id| check::request(Some(id)).is_ok()).map(str::to_owned);
        self
    }
    /// What an op opens with, for this caller.
    pub(crate) fn of(op: &dyn AnyOp, caller: &Caller) -> Self {
        let mut before = op.before();
        // A read shows what expiry would write now.
        before.looks |= op.reads();
        if before.request.is_some() {
            let key = caller.key.as_ref().map_or_else(String::new, |key| key.name.clone());
            before.asked = Asked { op: op.name(), digest: digest(op, &key), key };
        }
        before
    }
}

/// An absurd lease is the op's to refuse; nobody is heard for that long before.
fn sane(ttl: Option<Millis>) -> Option<Millis> {
    ttl.filter(|ttl| (TTL_MIN..=TTL_MAX).contains(ttl))
}

/// The fleet as the transaction found it.
#[derive(Debug, Default)]
pub(crate) struct Opening {
    /// What is due; empty on PostgreSQL if the op did not want to know, see [`Tx::is_due`].
    pub due: Due,
    /// Nobody has read what is due.
    pub due_unknown: bool,
    /// The unended run of the name that claims, or the run behind the token: alive or lapsed.
    pub run: Option<run::RunRow>,
    /// What this request did before, if it was asked before.
    pub repeat: Vec<Repeat>,
    /// The request's id, for the events of this op.
    pub request: Option<String>,
    /// What was asked under it, as it is stored.
    pub asked: Option<String>,
    /// The answers to the op's own reads.
    pub read: Vec<Answer>,
    /// How many things the batch of expiry changed that was done for this op.
    pub expired: u64,
    /// How often the fleet was restored, on PostgreSQL.
    pub epoch: i64,
    /// How far the fleet's time is ahead of the clock that it goes by.
    pub ahead: Millis,
}

impl Opening {
    /// Was this very request made before? An id that stands for something else is refused.
    pub fn is_repeat(&self, kind: &str, resource: Option<&Resource>) -> Result<bool> {
        self.is_repeat_by(None, kind, resource)
    }

    /// The same, for a claim: what one run took is no answer for another.
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
                format!("was used before, for another thing: `{}` of `{}`", did.kind, did.resource),
            )
            .hint("give every request an id of its own, and repeat it only with the same request")),
        }
    }
}

impl Opening {
    /// The same id with other content is a mistake of the caller's. (Events of earlier versions do not say what was asked:
    /// the op compares what they tell.)
    fn refuse_another(&self) -> Result<()> {
        let own = self.asked.as_deref();
        let other = self.repeat.iter().find(|did| did.asked.is_some() && did.asked.as_deref() != own);
        let Some(did) = other else { return Ok(()) };
        let op = did.asked.as_deref().and_then(|asked| asked.split(' ').next()).unwrap_or_default();
        let message =
            format!("was used before with other content: by {op}, of `{}`, at {}", did.resource, did.at);
        Err(Error::invalid("request", message)
            .with("op", op)
            .with("resource", &did.resource)
            .with("at", did.at)
            .hint("give every request an id of its own, and repeat it only with the same request"))
    }

    /// What was taken and given back undelivered is as if it had never been asked for: the request starts over.
    fn forget_undelivered(&mut self) {
        let is = |did: &Repeat, end: &str| did.kind.ends_with(end);
        let back: Vec<_> = self.repeat.iter().filter(|did| is(did, ".undelivered")).cloned().collect();
        if back.is_empty() {
            return;
        }
        self.repeat
            .retain(|did| !back.iter().any(|back| back.resource == did.resource && back.fence == did.fence));
        if !self.repeat.iter().any(|did| is(did, ".claimed")) {
            self.repeat.clear();
        }
    }
}

/// When there is next something to do that no write announces.
#[derive(Debug, Clone, Default)]
pub(crate) struct Due {
    pub floor: i64,
    /// The earliest end of a lease, a cap or a delay.
    pub at: Option<Time>,
    /// An ended run may still hold something.
    unsettled: bool,
}

impl Due {
    pub fn is_due(&self, now: Time) -> bool {
        self.unsettled || self.at.is_some_and(|at| at <= now)
    }
    /// Each is the first entry of a partial index, so this costs the same for one row and for a million.
    pub fn statement() -> Stmt {
        Stmt::new(
            "select floor,
               (select min(expires_at) from run where ended_at is null) as lapse_at,
               (select min(key) from run where ended_at is not null and settled = 0) as unsettled,
               (select min(until_at) from task where until_at is not null) as task_until_at,
               (select min(delayed_until) from task where delayed_until is not null) as delayed_until,
               (select min(until_at) from lock where until_at is not null) as lock_until_at,
               (select min(until_at) from message where until_at is not null) as message_until_at,
               (select min(delayed_until) from message where delayed_until is not null) as message_delayed_until,
               (select min(until_at) from reader where until_at is not null) as reader_until_at,
               (select min(strands_at) from agent where strands_at is not null) as strands_at
             from fleet",
            params![],
        )
    }
    pub fn read(answer: &Answer) -> Result<Due> {
        let row = &answer.rows[0];
        let ends = [
            "lapse_at",
            "task_until_at",
            "delayed_until",
            "lock_until_at",
            "message_until_at",
            "message_delayed_until",
            "reader_until_at",
            "strands_at",
        ];
        let ends = ends.iter().map(|end| row.get::<Option<Time>>(end)).collect::<Result<Vec<_>>>()?;
        Ok(Due {
            floor: row.get("floor")?,
            at: ends.into_iter().flatten().min(),
            unsettled: row.get::<Option<i64>>("unsettled")?.is_some(),
        })
    }
}

/// One thing that a request did when it was asked the first time.
#[derive(Debug, Clone)]
pub(crate) struct Repeat {
    pub kind: String,
    pub resource: String,
    pub fence: Option<i64>,
    pub run: Option<String>,
    pub at: Time,
    pub asked: Option<String>,
}

/// What there is to do first.
#[derive(Debug)]
pub(crate) enum Todo {
    Hear {
        key: i64,
        ttl: Millis,
    },
    /// The caller's own name has lapsed: that incarnation ends here, and a new one may begin.
    End {
        key: i64,
    },
}

impl Before {
    pub(crate) fn settles(&self) -> bool {
        self.settles
    }
    pub(crate) fn is_restore(&self) -> bool {
        self.restores
    }

    /// Is a batch of expiry to be done before the op looks?
    pub(crate) fn expires(&self, due: &Due, now: Time) -> bool {
        self.settles && due.is_due(now)
    }

    /// The read of what is due, if the op wants it. On PostgreSQL it is the dearest of those an op opens with.
    pub(crate) fn due(&self) -> Option<Stmt> {
        self.looks.then(Due::statement)
    }

    /// The reads that this op opens with. On PostgreSQL, ops with the same request id wait for each other
    /// here: a retry on another node must not miss its uncommitted first try.
    pub(crate) fn statements(&self) -> Vec<Stmt> {
        let mut statements = Vec::with_capacity(3);
        if let Some(request) = &self.request {
            statements.push(Stmt::lock(
                "select pg_advisory_xact_lock(hashtextextended(current_schema() || ' ' || ?2 || ' ' || ?1, 0)) is null",
                params![request, &self.asked.key],
            ));
            statements.push(Stmt::new(
                "select kind, resource, fence, run, at, asked from event where request = ?1 order by id",
                params![request],
            ));
        }
        // Before the run: one that is locked here is read as it stays.
        statements.extend(self.reads.iter().cloned());
        match &self.heard {
            Some(Heard::Run { name, .. }) => statements.push(Stmt::new(run::BY_NAME, params![name])),
            Some(Heard::Token { token: Token { resource: Resource::Task(id), fence }, .. }) => {
                statements.push(Stmt::new(crate::ops::task::RUN_BEHIND, params![&id.board, id.n, *fence]));
            }
            Some(Heard::Token { token: Token { resource: Resource::Message(id), fence }, .. }) => {
                statements.push(Stmt::new(crate::ops::mail::RUN_BEHIND, params![*id, *fence]));
            }
            Some(Heard::Token {
                token: Token { resource: Resource::Mentions { agent, channel }, fence },
                ..
            }) => {
                statements.push(Stmt::new(crate::ops::channel::RUN_BEHIND, params![agent, channel, *fence]));
            }
            Some(Heard::Token { token: Token { resource: Resource::Lock(name), fence }, .. }) => {
                statements.push(Stmt::new(crate::ops::lock::RUN_BEHIND, params![name, *fence]));
            }
            None => {}
        }
        statements
    }

    /// Reads the answers to [`Self::statements`].
    pub(crate) fn read(&self, due: Due, answers: Vec<Answer>) -> Result<Opening> {
        let mut answers = answers.into_iter();
        let (request, asked) = (self.request.clone(), self.asked.text());
        let mut opening = Opening { due, request, asked, ..Opening::default() };
        if self.request.is_some() {
            answers.next();
            for row in answers.next().unwrap_or_default().rows {
                opening.repeat.push(Repeat {
                    kind: row.get("kind")?,
                    resource: row.get("resource")?,
                    fence: row.get("fence")?,
                    run: row.get("run")?,
                    at: row.get("at")?,
                    asked: row.get("asked")?,
                });
            }
        }
        // Ids of different keys are apart.
        let is_own = |asked: &str| asked.splitn(3, ' ').nth(2) == Some(&self.asked.key);
        opening.repeat.retain(|did| did.asked.as_deref().is_none_or(is_own));
        opening.forget_undelivered();
        opening.read = answers.by_ref().take(self.reads.len()).collect();
        if self.heard.is_some() {
            let rows = answers.next().unwrap_or_default().rows;
            opening.run = rows.first().map(run::RunRow::read).transpose()?;
        }
        Ok(opening)
    }

    /// The same, with what is due at the end, if it was asked for.
    pub(crate) fn read_all(&self, mut answers: Vec<Answer>) -> Result<Opening> {
        let due = if self.looks { Due::read(&answers.pop().unwrap_or_default())? } else { Due::default() };
        Ok(Opening { due_unknown: !self.looks, ..self.read(due, answers)? })
    }

    /// Refused if the request's id stands for another request, or if the run, or the one behind the token, is not this
    /// caller's to use. (Of a name whose run has lapsed nothing is left to protect: whoever comes begins anew.)
    pub(crate) fn todo(&self, opening: &Opening, caller: &Caller, now: Time) -> Result<Vec<Todo>> {
        opening.refuse_another()?;
        let mut todo = Vec::new();
        if let (Some(heard), Some(run)) = (&self.heard, &opening.run) {
            let (own_name, wanted) = match heard {
                Heard::Run { ttl, .. } => (true, *ttl),
                Heard::Token { ttl, .. } => (false, *ttl),
            };
            if !own_name || run.is_alive(now) {
                caller.may_use(&run.name, run.agent.as_deref())?;
            }
            if !run.is_alive(now) {
                todo.extend(own_name.then_some(Todo::End { key: run.key }));
            } else if let Some(ttl) = run.renewal(wanted, now) {
                todo.push(Todo::Hear { key: run.key, ttl });
            }
        }
        Ok(todo)
    }
}

/// Renews the caller's run, or ends its last incarnation.
pub(crate) async fn outlast(tx: &mut Tx<'_>, todo: &[Todo]) -> Result<()> {
    // None of it is what the request asked for: under its id, it would be taken for the request's first try.
    let request = tx.opening.request.take();
    for item in todo {
        match *item {
            Todo::Hear { key, ttl } => run::hear(tx, key, ttl).await?,
            Todo::End { key } => run::end::lapse(tx, key).await?,
        };
    }
    tx.opening.request = request;
    Ok(())
}

impl Tx<'_> {
    /// Opens an op in a transaction that is already under way: one batch of what is due is done in it.
    pub(crate) async fn open(&mut self, before: &Before) -> Result<()> {
        self.look_round(before).await?;
        let todo = before.todo(&self.opening, &self.caller, self.now)?;
        let expires = before.expires(&self.opening.due, self.now);
        if todo.is_empty() && !expires {
            return Ok(());
        }
        outlast(self, &todo).await?;
        if expires {
            self.expire().await?;
        }
        self.look_round(before).await
    }

    /// Is something due? For an op that needs the answer only sometimes, and did not open with it.
    pub(crate) async fn is_due(&mut self) -> Result<bool> {
        if std::mem::take(&mut self.opening.due_unknown) {
            self.opening.due = Due::read(&self.one(Due::statement()).await?)?;
        }
        Ok(self.opening.due.is_due(self.now))
    }

    /// One batch of expiry. If it fails, its changes are undone and the transaction goes on.
    async fn expire(&mut self) -> Result<()> {
        // The events are not what the request did, and not the caller's doing.
        let (request, caller) = (self.opening.request.take(), std::mem::take(&mut self.caller));
        self.execute("savepoint expiry", params![]).await?;
        let expired = run::sweep::sweep(self).await;
        (self.opening.request, self.caller) = (request, caller);
        if let Err(error) = expired {
            tracing::warn!("a batch of expiry failed: {error}");
            self.execute("rollback to savepoint expiry", params![]).await?;
        }
        self.execute("release savepoint expiry", params![]).await.map(drop)
    }

    async fn look_round(&mut self, before: &Before) -> Result<()> {
        let mut statements = before.statements();
        statements.extend(before.due());
        let answers = self.pipeline(statements).await?;
        self.opening = before.read_all(answers)?;
        Ok(())
    }
}
