use super::{Lease, Run};
use crate::{
    caller::Access,
    db::{RunRow, Tx},
    engine::op::{OnRetry, Op, erased, refuses},
    error::{Code, Error, Result},
    lease::{
        ending::{end, lock},
        expiry,
        run::{check_name, runs},
    },
    limits::{TEXT_MAX, check},
    ops::{nouns, task},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// End a run. All its tokens become invalid at once, and its items go back.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct End {
    pub run: String,
    #[serde(default)]
    pub reason: Option<String>,
    /// Only if this is still its lease, as `run/suspect` returned it: nobody has renewed the run since.
    #[serde(default)]
    pub lease: Option<Lease>,
    /// The terminal or agent that the run worked for is gone. Its tasks did not fail, so their attempts do not
    /// count. After ten times an attempt of a task counts all the same.
    #[serde(default)]
    pub owner_gone: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ended {
    pub run: Run,
}

impl Op for End {
    const NAME: &'static str = "run/end";
    const ACCESS: Access = Access::Agent;
    // Never: a repeat could end a new run of the same name.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"run":"r-1"}"#;
    refuses![NotReady];
    type Reply = Ended;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Ended> {
        check_name(&self.run)?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        let Some(row) = lock(tx, &self.run).await? else { return self.ended_before(tx).await };
        row.under(self.lease)?;
        let reason = self.reason.as_deref().unwrap_or("ended");
        if self.owner_gone && row.is_alive(tx.now) {
            task::release::unclaim_of(tx, row.key, reason).await?;
        }
        end(tx, std::slice::from_ref(&row), reason).await?;
        expiry::give_back(tx, nouns()).await?;
        let run = RunRow { ended_at: Some(tx.now), reason: Some(reason.into()), ..row };
        Ok(Ended { run: run.view(tx.now) })
    }
}

impl End {
    /// The run has already ended: the reply shows the last incarnation of the name.
    async fn ended_before(self, tx: &mut Tx<'_>) -> Result<Ended> {
        let rows = tx.query(runs!("where name = ?1 order by key desc limit 1"), params![&self.run]).await?;
        match rows.first().map(RunRow::read).transpose()? {
            Some(run) => Ok(Ended { run: run.view(tx.now) }),
            None => Err(Error::new(Code::NotFound, format!("there is no run `{}`", self.run))
                .hint("fence runs --all shows the runs there are")),
        }
    }
}
