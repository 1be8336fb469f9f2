use super::{Run, list};
use crate::{
    caller::Access,
    db::{Batch, RunRow, Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::{Code, Error, Result},
    lease::run::{check_name, runs},
    limits::{TEXT_MAX, check},
    ops::spend::cost::Cost,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Report the cost of a run that settled itself without one. The first cost of a run is kept.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Charge {
    pub run: String,
    /// The cost, as `run/settle` takes it.
    pub cost: serde_json::Value,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Charged {
    pub run: Run,
}

impl Op for Charge {
    const NAME: &'static str = "run/charge";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"run":"r-1","cost":{"usd":0.12}}"#;
    type Reply = Charged;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Charged> {
        check_name(&self.run)?;
        let text = self.cost.to_string();
        check::json("cost", &text, TEXT_MAX)?;
        let cost = Cost::of(Some(&self.cost))?;
        let rows = tx
            .query(runs!("where name = ?1 order by key desc limit 1 /*pg for update*/"), params![&self.run])
            .await?;
        let Some(run) = rows.first().map(RunRow::read).transpose()? else {
            return Err(Error::new(Code::NotFound, format!("there is no run `{}`", self.run)));
        };
        tx.caller.may_use(&run.name, run.agent.as_deref())?;
        let mut batch = Batch::new();
        let stored = batch.add(Stmt::write(
            "update run set cost = ?2 where key = ?1 and cost is null",
            params![run.key, text],
        ));
        if tx.send(batch).await?.affected(stored) == 1
            && let Some(counted) = cost.store(run.key)
        {
            tx.one(counted).await?;
        }
        Ok(Charged { run: list::of(tx, run.key).await? })
    }
}
