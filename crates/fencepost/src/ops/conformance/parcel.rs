//! Parcels: a claimable noun that exists only in tests. To be claimable it needs this file, a line in `ops.rs` and a
//! migration.

use crate::{
    caller::Access,
    clock::Millis,
    db::{Batch, BoxFuture, Delivered, Row, Stmt, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    ids::{Resource, Token},
    lease::{
        Claim as LiveClaim, ClaimState, Claimable, Hold, Last,
        claimable::{Promise, Settlement, Table, Unclaimed},
        expiry::ITEMS,
        hold::{check_written, next_fence, require},
        run::Holder,
    },
    limits::{PLAIN, name_problem},
    log::Event,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug)]
pub(crate) struct Parcels;

/// Claim a parcel for a run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Claim {
    pub name: String,
    pub run: String,
    pub ttl_ms: Option<Millis>,
    pub max_ms: Option<Millis>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Claimed {
    pub claim: LiveClaim,
}

impl Op for Claim {
    const NAME: &'static str = "parcel/claim";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"name": "p", "run": "r"}"#;
    refuses![AlreadyClaimed];
    type Reply = Claimed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::claims(&self.run, self.ttl_ms)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Claimed> {
        let holder = Holder::of(tx, &self.run, None, self.ttl_ms)?;
        let mut batch = Batch::new();
        let entered = batch.add(holder.enter(tx.now));
        batch.add(Stmt::lock("select 1 from parcel where name = ?1 for update", params![&self.name]));
        let found = batch.add(Stmt::read(BY_NAME, params![&self.name]));
        let mut answers = tx.send(batch).await?;
        let run_key = holder.key(&answers.take(entered).rows)?;
        let parcel = answers.take(found).rows.into_iter().next().map(Parcel::read).transpose()?;
        let parcel = parcel.ok_or_else(|| Error::new(Code::NotFound, "there is no such parcel"))?;
        if parcel.hold.as_ref().is_some_and(|hold| hold.is_alive(tx.now)) {
            return Err(Error::new(Code::AlreadyClaimed, "another run has it"));
        }
        let hold = holder.hold(run_key, next_fence(tx, parcel.fence), self.max_ms, tx.now);
        let resource = Resource::new("parcel", &self.name);
        let event = event("parcel.claimed", &parcel.name, &hold).insert(tx);
        let mut batch = Batch::new();
        let written = batch.add(Stmt::write(
            "update parcel set run = ?2, fence = ?3, claimed_at = ?4, until_at = ?5 where name = ?1
             and exists (select 1 from run where key = ?2 and ended_at is null and expires_at > ?4)",
            params![&self.name, run_key, hold.fence, tx.now, hold.until],
        ));
        batch.add(event);
        check_written(tx.send(batch).await?.affected(written), &hold.token(&resource))?;
        tx.notes.delivered = vec![Delivered { token: hold.token(&resource), delivery: parcel.delivery }];
        Ok(Claimed { claim: hold.claim(&resource) })
    }
}

/// A row of the table.
struct Parcel {
    name: String,
    fence: i64,
    delivery: i64,
    hold: Option<Hold>,
    last: Option<Last>,
}

macro_rules! parcels {
    ($rest:literal) => {
        concat!(
            "select parcel.name, fence, delivery, claimed_at, until_at, last_fence, last_verb, last_digest,
               run.key as run_key, run.name as run_name, run.agent as run_agent,
               run.expires_at as run_expires_at, run.ended_at as run_ended_at
             from parcel left join run on run.key = parcel.run ",
            $rest
        )
    };
}

const BY_NAME: &str = parcels!("where parcel.name = ?1");

impl Parcel {
    fn read(mut row: Row) -> Result<Self> {
        Ok(Self {
            name: row.get("name")?,
            fence: row.get("fence")?,
            delivery: row.get("delivery")?,
            hold: Hold::read(&mut row)?,
            last: Last::read(&mut row)?,
        })
    }
    fn claim_state(&self) -> ClaimState {
        ClaimState { fence: self.fence, hold: self.hold.clone(), closed: None, last: self.last.clone() }
    }
}

async fn load(tx: &mut Tx<'_>, name: &str) -> Result<Option<Parcel>> {
    tx.query(BY_NAME, params![name]).await?.into_iter().next().map(Parcel::read).transpose()
}

fn event(kind: &'static str, name: &str, hold: &Hold) -> Event {
    let fence = Some(hold.fence);
    Event { run: Some(hold.run.clone()), fence, ..Event::new(kind, format!("parcel/{name}")) }
}

/// Ends claims with one verb. Returns how many.
async fn free(tx: &mut Tx<'_>, parcels: Vec<Parcel>, verb: &str, kind: &'static str) -> Result<u64> {
    let mut freed = 0;
    for parcel in parcels {
        let Some(hold) = &parcel.hold else { continue };
        let last = Last::new(hold.fence, verb, &[]);
        let event = event(kind, &parcel.name, hold).insert(tx);
        let mut batch = Batch::new();
        let written = batch.add(Stmt::write(
            "update parcel set run = null, claimed_at = null, until_at = null, last_fence = ?2, last_verb = ?3,
               last_digest = ?4 where name = ?1 and fence = ?2",
            params![&parcel.name, last.fence, last.verb, last.digest],
        ));
        batch.add(event);
        freed += tx.send(batch).await?.affected(written);
    }
    Ok(freed)
}

impl Claimable for Parcels {
    fn noun(&self) -> &'static str {
        "parcel"
    }
    fn table(&self) -> &'static Table {
        &Table {
            name: "parcel",
            id: "parcel.name",
            order: "parcel.name",
            sort: ("parcel.name", "0"),
            deadlines: &[],
        }
    }
    fn id_problem(&self, id: &str) -> Option<String> {
        name_problem(id, PLAIN)
    }
    fn run_behind(&self, id: &str, fence: i64) -> Stmt {
        Stmt::read(
            "select run.key, run.name, run.agent, ttl_ms, opened_at, expires_at, ended_at, reason
             from parcel join run on run.key = parcel.run where parcel.name = ?1 and parcel.fence = ?2",
            params![id, fence],
        )
    }
    fn claim_state<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        id: &'t str,
    ) -> BoxFuture<'t, Result<Option<ClaimState>>> {
        Box::pin(async move { Ok(load(tx, id).await?.map(|parcel| parcel.claim_state())) })
    }
    fn lapse_of_runs<'t>(&'t self, tx: &'t mut Tx<'_>, runs: &'t [i64]) -> BoxFuture<'t, Result<u64>> {
        Box::pin(async move {
            let held = parcels!(
                "where parcel.run in (select cast(value ->> 'k' as bigint) from json_each(?1)) limit ?2
                 /*pg for update of parcel skip locked*/"
            );
            let rows = tx.query(held, params![crate::db::key_set(runs.iter().copied()), ITEMS]).await?;
            let held = rows.into_iter().map(Parcel::read).collect::<Result<_>>()?;
            free(tx, held, "lapse", "parcel.lapsed").await
        })
    }
    fn lapse_at_limit<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<u64>> {
        Box::pin(async move {
            let capped = parcels!(
                "where until_at <= ?1 order by until_at limit ?2 /*pg for update of parcel skip locked*/"
            );
            let rows = tx.query(capped, params![tx.now, ITEMS]).await?;
            let capped = rows.into_iter().map(Parcel::read).collect::<Result<_>>()?;
            free(tx, capped, "lapse", "parcel.lapsed").await
        })
    }
    fn release<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        token: &'t Token,
        _note: Option<&'t str>,
    ) -> BoxFuture<'t, Result<String>> {
        Box::pin(async move {
            let parcel = load(tx, token.resource.id()).await?;
            if parcel
                .as_ref()
                .is_some_and(|parcel| parcel.last == Some(Last::new(token.fence, "release", &[])))
            {
                return Ok("free".into());
            }
            require(parcel.as_ref().map(Parcel::claim_state).as_ref(), token, tx.now)?;
            free(tx, parcel.into_iter().collect(), "release", "parcel.released").await?;
            Ok("free".into())
        })
    }
    fn unclaim<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        id: &'t str,
        _reason: Option<&'t str>,
    ) -> BoxFuture<'t, Result<Unclaimed>> {
        Box::pin(async move {
            let parcel = load(tx, id).await?;
            let held_by = parcel.as_ref().and_then(|parcel| Some(parcel.hold.as_ref()?.run.clone()));
            free(tx, parcel.into_iter().collect(), "unclaim", "parcel.unclaimed").await?;
            Ok(Unclaimed { held_by, status: "free".into() })
        })
    }
    fn return_undelivered<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        delivered: &'t [&'t Delivered],
    ) -> BoxFuture<'t, Result<u64>> {
        Box::pin(async move {
            let mut returned = 0;
            for delivered in delivered {
                let parcel = load(tx, delivered.token.resource.id()).await?.filter(|parcel| {
                    parcel.fence == delivered.token.fence && parcel.delivery == delivered.delivery
                });
                returned += free(tx, parcel.into_iter().collect(), "undeliver", "parcel.undelivered").await?;
            }
            Ok(returned)
        })
    }
    fn settle<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        token: &'t Token,
        _settlement: &'t Settlement,
    ) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move { self.release(tx, token, None).await.map(|_| false) })
    }
    fn ended_by_holder(&self) -> &'static [&'static str] {
        &["parcel.released"]
    }
    fn promises(&self) -> &'static [Promise] {
        &[Promise {
            text: "a parcel is held with a claim that says since when",
            broken: "select 'parcel/' || name as resource from parcel where (run is null) <> (claimed_at is null)",
        }]
    }
}
