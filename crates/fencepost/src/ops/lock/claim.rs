use super::{Record, add_locked};
use crate::{
    caller::Access,
    clock::Millis,
    db::{Batch, Delivered, Stmt, Subscription, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    ids::{Owner, Resource, Token},
    lease::run,
    lease::{
        Hold,
        hold::{next_fence, write_logged},
        run::Holder,
    },
    limits::check,
    log::Event,
    ops::claim,
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Take a named lock for a run. A refusal names the holder.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// `deploy`, `git/main`
    pub name: String,
    /// The run that will hold the lock. It is opened if it does not exist.
    pub run: String,
    #[serde(default)]
    pub agent: Option<String>,
    /// Lease: others may claim this run's items if it is not renewed for this long (default 30 min).
    #[serde(default)]
    pub ttl_ms: Option<Millis>,
    /// The longest that this claim may last, even if it is renewed.
    #[serde(default)]
    pub max_ms: Option<Millis>,
    /// If this run already holds the lock, return its token again instead of refusing.
    #[serde(default)]
    pub resume: bool,
    /// If another run holds the lock, wait up to this long (at most 10 minutes; repeat the call to wait longer). Each
    /// attempt renews the run, waiting does not: renew a run that holds other items meanwhile, or its lease expires.
    #[serde(default)]
    pub wait_ms: Option<Millis>,
    /// Request id: repeating the call with the same id returns the first reply.
    #[serde(default)]
    pub request: Option<String>,
}

impl Claim {
    pub fn new(name: impl Into<String>, run: impl Into<String>) -> Self {
        Self { name: name.into(), run: run.into(), ..Self::default() }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Claimed {
    pub claim: claim::Claim,
}

impl Op for Claim {
    const NAME: &'static str = "lock/claim";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"name":"deploy","run":"r-1"}"#;
    refuses![AlreadyClaimed, LeaseExpired];
    type Reply = Claimed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::claims(&self.run, self.ttl_ms).once(self.request.as_deref())
    }

    fn wait(&self) -> Option<Millis> {
        self.wait_ms
    }

    fn contended(&self) -> Option<Resource> {
        Some(Resource::new("lock", &self.name))
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Claimed> {
        check::path_name("name", &self.name)?;
        tx.caller.may_use_name(&format!("lock `{}`", self.name), Owner::of_name(&self.name))?;
        run::check_name(&self.run)?;
        check::optional_name("agent", self.agent.as_deref())?;
        check::lease("ttl_ms", self.ttl_ms)?;
        check::lease("max_ms", self.max_ms)?;
        check::request(self.request.as_deref())?;

        let resource = Resource::new("lock", &self.name);
        if tx.opening.is_repeat_by(Some(&self.run), "lock.claimed", Some(&resource))? {
            let claimed = tx.opening.repeat.iter().find(|did| did.kind == "lock.claimed");
            let fence = claimed.and_then(|did| did.fence);
            let lock = super::load(tx, &self.name).await?;
            return self.repeated(tx, lock.filter(|lock| Some(lock.fence) == fence)).await;
        }
        let holder = Holder::of(tx, &self.run, self.agent.as_deref(), self.ttl_ms)?;
        let mut batch = Batch::new();
        let entered = batch.add(holder.enter(tx.now));
        let found = add_locked(&mut batch, &self.name);
        let mut answers = tx.send(batch).await?;
        let run_key = holder.key(&answers.take(entered).rows)?;
        match answers.take(found).rows.into_iter().next().map(Record::read).transpose()? {
            Some(lock) => self.take(tx, lock, holder, run_key).await,
            None => self.first_claim(tx, holder, run_key).await,
        }
    }
}

impl Claim {
    async fn take(self, tx: &mut Tx<'_>, lock: Record, holder: Holder, run_key: i64) -> Result<Claimed> {
        let mut events = Vec::new();
        let mut free = lock.clone();
        if let Some(hold) = &lock.hold {
            if hold.is_alive(tx.now) {
                return self.held(tx, &lock, hold).await;
            }
            free = lock.free("lapse");
            events.push(free.event("lock.lapsed", &lock));
        }
        let fence = next_fence(tx, lock.fence);
        let taken =
            Record { fence, hold: Some(holder.hold(run_key, fence, self.max_ms, tx.now)), ..free.clone() };
        events.push(taken.event("lock.claimed", &free));
        let events = Event::insert_many(tx, events)?;
        let written = write_logged(tx, taken.save(&lock, Some(run_key), tx.now), events).await?;
        self.reply(tx, &taken, written)
    }

    /// The row is new, so its fence starts above the floor: an earlier row of this name may have been pruned.
    async fn first_claim(self, tx: &mut Tx<'_>, holder: Holder, run_key: i64) -> Result<Claimed> {
        let floor = tx.query("select floor from fleet /*pg for share*/", params![]).await?;
        let fence = floor[0].get::<i64>("floor")? + 1;
        let free = Record { name: self.name.clone(), fence, delivery: 1, hold: None, last: None };
        let hold = holder.hold(run_key, fence, self.max_ms, tx.now);
        let insert = Stmt::write(
            "insert into lock(name, run, fence, until_at, claimed_at, updated_at)
             select ?1, ?2, ?3, ?4, ?5, ?5
             where exists (select 1 from run where key = ?2 and ended_at is null and expires_at > ?5)
             on conflict (name) do nothing",
            params![&self.name, run_key, fence, hold.until, tx.now],
        );
        let taken = Record { hold: Some(hold), ..free.clone() };
        let event = taken.event("lock.claimed", &free).insert(tx);
        let written = write_logged(tx, insert, event).await?;
        self.reply(tx, &taken, written)
    }

    fn reply(&self, tx: &mut Tx<'_>, lock: &Record, written: u64) -> Result<Claimed> {
        match &lock.hold {
            Some(hold) if written == 1 => {
                let resource = lock.resource();
                tx.notes.delivered =
                    vec![Delivered { token: hold.token(&resource), delivery: lock.delivery }];
                Ok(Claimed { claim: hold.claim(&resource) })
            }
            _ => Err(Error::raced(format!(
                "lock `{}` or run `{}` changed at this moment",
                self.name, self.run
            ))),
        }
    }

    async fn held(&self, tx: &mut Tx<'_>, lock: &Record, hold: &Hold) -> Result<Claimed> {
        let own = hold.run == self.run;
        if own && self.resume {
            // The caller may have the token already: count this as a delivery, but as one that is not taken back.
            deliver_again(tx, &self.name, hold.token(&lock.resource())).await?;
            return Ok(Claimed { claim: hold.claim(&lock.resource()) });
        }
        tx.notes.subscriptions = vec![Subscription::new(("lock", &self.name), [Topic::lock(&self.name)])];
        let hint = if own { "--resume gives you its token again" } else { "fence lock --wait waits for it" };
        Err(Error::new(Code::AlreadyClaimed, format!("lock `{}` is held by {}", self.name, hold.describe()))
            .with("holder", &hold.run)
            .with("own", own)
            .with("fence", hold.fence)
            .with("expires_at", hold.expires_at())
            .hint(hint))
    }

    /// The reply to a repeated request: the first one, while its claim is the lock's latest.
    async fn repeated(&self, tx: &mut Tx<'_>, lock: Option<Record>) -> Result<Claimed> {
        let alive = lock.and_then(|lock| lock.hold).filter(|hold| hold.is_alive(tx.now));
        match alive {
            Some(hold) => {
                let resource = Resource::new("lock", &self.name);
                tx.notes.delivered = vec![deliver_again(tx, &self.name, hold.token(&resource)).await?];
                Ok(Claimed { claim: hold.claim(&resource) })
            }
            None => Err(Error::new(Code::LeaseExpired, "this request no longer holds the lock")
                .hint("claim again with a new request id")),
        }
    }
}

/// Delivers a claim again, under its next delivery number.
async fn deliver_again(tx: &mut Tx<'_>, name: &str, token: Token) -> Result<Delivered> {
    let raised = tx
        .execute_returning(
            "update lock set delivery = delivery + 1 where name = ?1 and fence = ?2 and run is not null
             returning delivery",
            params![name, token.fence],
        )
        .await?;
    match raised.first() {
        Some(row) => Ok(Delivered { token, delivery: row.get("delivery")? }),
        None => Err(Error::raced(format!("claim `{token}` ended at this moment"))),
    }
}
