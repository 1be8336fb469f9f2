use super::{Lease, Run};
use crate::{
    caller::Access,
    clock::Millis,
    db::RunRow,
    db::{Stmt, Tx},
    engine::op::{OnRetry, Op, erased, refuses},
    error::{Code, Error, Result},
    lease::{ending::lock, run::check_name},
    log::Event,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Suspect that nobody acts for a run any more. This uses up a quarter of its lease at once, so that every later
/// renewal is written and changes its end. `run/end` can then end the run only if nobody has renewed it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Suspect {
    pub run: String,
    /// Only if nobody has renewed the run since an earlier reply showed this lease. A suspicion does not renew it, so the
    /// caller can ask again if the answer was lost.
    #[serde(default)]
    pub lease: Option<Lease>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Suspected {
    pub run: Run,
}

impl Op for Suspect {
    const NAME: &'static str = "run/suspect";
    const FORMERLY: Option<&'static str> = Some("run/doubt");
    const ACCESS: Access = Access::Agent;
    // Never: without `lease`, a repeat would suspect a run that was renewed meanwhile.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"run":"r-1"}"#;
    refuses![NotReady, LeaseExpired];
    type Reply = Suspected;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Suspected> {
        check_name(&self.run)?;
        let alive = lock(tx, &self.run).await?.filter(|run| run.is_alive(tx.now));
        let Some(run) = alive else {
            let message = format!("run `{}` is over, or never began", self.run);
            return Err(
                Error::new(Code::LeaseExpired, message).hint("fence runs --all shows the runs there are")
            );
        };
        run.not_renewed_since(self.lease)?;
        // A renewal is written once a quarter of the lease is used. From now on that is always true.
        let expires_at = run.expires_at.min(tx.now.plus(Millis(run.ttl.0 - run.ttl.0 / 4)));
        // The event wakes the waiters for the end of the lease, which is earlier now.
        let event = Event {
            run: Some(run.name.clone()),
            agent: run.agent.clone(),
            ..Event::new("run.doubted", format!("run/{}", run.name))
        };
        let event = event.insert(tx);
        tx.notes.due_changed = true;
        let shorten = "update run set expires_at = ?2 where key = ?1";
        tx.send([Stmt::write(shorten, params![run.key, expires_at]), event].into()).await?;
        Ok(Suspected { run: RunRow { expires_at, ..run }.view(tx.now) })
    }
}
