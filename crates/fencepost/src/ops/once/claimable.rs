//! `Claimable` for effects.

use super::{lapse, record::load, release};
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

pub(crate) const NOUN: &str = "once";

#[derive(Debug)]
pub(crate) struct Effects;

impl Claimable for Effects {
    fn noun(&self) -> &'static str {
        NOUN
    }
    fn table(&self) -> &'static Table {
        &Table {
            name: "effect",
            id: "effect.name",
            order: "effect.name",
            sort: ("effect.name", "0"),
            deadlines: &[],
        }
    }
    fn id_problem(&self, id: &str) -> Option<String> {
        name_problem(id, PATH).map(|problem| format!("`{}` is not an effect's key: it {problem}", clip(id)))
    }
    fn run_behind(&self, id: &str, fence: i64) -> Stmt {
        Stmt::read(
            "select run.key, run.name, run.agent, ttl_ms, opened_at, expires_at, ended_at, run.reason
             from effect join run on run.key = effect.run where effect.name = ?1 and effect.fence = ?2",
            params![id, fence],
        )
    }
    fn claim_state<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        id: &'t str,
    ) -> BoxFuture<'t, Result<Option<ClaimState>>> {
        Box::pin(async move { Ok(load(tx, id).await?.map(|effect| effect.claim_state())) })
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
        Box::pin(async move { release::release(tx, token).await.map(|status| status.as_str().into()) })
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
    /// No poll gives out an effect.
    fn settle<'t>(
        &'t self,
        tx: &'t mut Tx<'_>,
        token: &'t Token,
        _settlement: &'t Settlement,
    ) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move { release::settle(tx, token).await.map(|()| false) })
    }
    fn ended_by_holder(&self) -> &'static [&'static str] {
        &["once.finished", "once.released", "once.resolved"]
    }
    fn promises(&self) -> &'static [Promise] {
        &[
            Promise {
                text: "an effect is running while a run holds it, and only then",
                broken: "select 'once/' || name as resource from effect where (status = 'running') <> (run is not null)",
            },
            Promise {
                text: "an effect that succeeded or failed says by whom and how",
                broken: "select 'once/' || name as resource from effect
                 where (status = 'succeeded' and (source is null or coalesce(exit_code, 0) <> 0))
                 or (status = 'failed' and (source is null or coalesce(exit_code, 0) = 0))",
            },
            Promise {
                text: "an effect in doubt has a reason",
                broken: "select 'once/' || name as resource from effect where status = 'in_doubt' and reason is null",
            },
            Promise {
                text: "only an effect that is unused, failed or in doubt is begun",
                broken: "select 'once/' || name as resource from effect where was not in ('unused', 'failed', 'in_doubt')",
            },
        ]
    }
}
