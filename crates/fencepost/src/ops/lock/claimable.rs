//! `Claimable` for locks.

use super::{lapse, load, release};
use crate::{
    db::{BoxFuture, Delivered, Stmt, Tx},
    error::Result,
    ids::{Token, clip},
    lease::{
        ClaimState, Claimable,
        claimable::{Promise, Settlement, Table, Unclaimed},
    },
    limits::{PATH, name_problem},
    params,
};

#[derive(Debug)]
pub(crate) struct Locks;

impl Claimable for Locks {
    fn noun(&self) -> &'static str {
        "lock"
    }
    fn table(&self) -> &'static Table {
        &Table { name: "lock", id: "lock.name", order: "lock.name", sort: ("lock.name", "0"), deadlines: &[] }
    }
    fn id_problem(&self, id: &str) -> Option<String> {
        name_problem(id, PATH).map(|problem| format!("`{}` is not a lock's name: it {problem}", clip(id)))
    }
    fn run_behind(&self, id: &str, fence: i64) -> Stmt {
        Stmt::read(
            "select run.key, run.name, run.agent, ttl_ms, opened_at, expires_at, ended_at, reason
             from lock join run on run.key = lock.run where lock.name = ?1 and lock.fence = ?2",
            params![id, fence],
        )
    }
    fn claim_state<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        id: &'t str,
    ) -> BoxFuture<'t, Result<Option<ClaimState>>> {
        Box::pin(async move { Ok(load(tx, id).await?.map(|lock| lock.claim_state())) })
    }
    fn lapse_of_runs<'t>(&'t self, tx: &'t mut Tx<'_>, runs: &'t [i64]) -> BoxFuture<'t, Result<u64>> {
        Box::pin(lapse::of_runs(tx, runs))
    }
    fn lapse_at_limit<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<u64>> {
        Box::pin(lapse::at_limit(tx))
    }
    fn release<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        token: &'t Token,
        _note: Option<&'t str>,
    ) -> BoxFuture<'t, Result<String>> {
        Box::pin(release::release(tx, token))
    }
    fn unclaim<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        id: &'t str,
        reason: Option<&'t str>,
    ) -> BoxFuture<'t, Result<Unclaimed>> {
        Box::pin(release::unclaim(tx, id, reason))
    }
    fn return_undelivered<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        delivered: &'t [&'t Delivered],
    ) -> BoxFuture<'t, Result<u64>> {
        Box::pin(release::return_undelivered(tx, delivered))
    }
    /// No poll gives out a lock. A lock that was claimed besides a trigger goes back.
    fn settle<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        token: &'t Token,
        _settlement: &'t Settlement,
    ) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move { release::release(tx, token).await.map(|_| false) })
    }
    fn ended_by_holder(&self) -> &'static [&'static str] {
        &["lock.released"]
    }
    fn promises(&self) -> &'static [Promise] {
        &[]
    }
}
