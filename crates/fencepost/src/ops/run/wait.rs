use super::{Run, list};
use crate::{
    caller::Access,
    db::{Stmt, Tx},
    engine::op::{OnRetry, Op, erased, refuses},
    error::{Code, Error, Result},
    lease::{ending::lock, run::check_name},
    log::Event,
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Mark a run as waiting for a person, or clear the mark. Its claims stay its own: the mark only tells others why nothing happens.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    pub run: String,
    /// False: the person answered, and the run goes on.
    pub waiting: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Waits {
    pub run: Run,
}

impl Op for Wait {
    const NAME: &'static str = "run/wait";
    const ACCESS: Access = Access::Agent;
    // Never: a repeat could mark a new run of the same name.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"run":"r-1","waiting":true}"#;
    refuses![LeaseExpired];
    type Reply = Waits;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Waits> {
        check_name(&self.run)?;
        let Some(run) = lock(tx, &self.run).await?.filter(|run| run.is_alive(tx.now)) else {
            let message = format!("run `{}` is over, or never began", self.run);
            return Err(
                Error::new(Code::LeaseExpired, message).hint("fence runs --all shows the runs there are")
            );
        };
        let before = list::of(tx, run.key).await?;
        if before.waiting_at.is_some() == self.waiting {
            return Ok(Waits { run: before });
        }
        let waiting_at = self.waiting.then_some(tx.now);
        let kind = if self.waiting { "run.waiting" } else { "run.resumed" };
        let event = Event {
            run: Some(run.name.clone()),
            agent: run.agent.clone(),
            topic: Some(Topic::Nobody),
            ..Event::new(kind, format!("run/{}", run.name))
        };
        let event = event.insert(tx);
        let mark = "update run set waiting_at = ?2 where key = ?1";
        tx.send([Stmt::write(mark, params![run.key, waiting_at]), event].into()).await?;
        Ok(Waits { run: Run { waiting_at, ..before } })
    }
}
