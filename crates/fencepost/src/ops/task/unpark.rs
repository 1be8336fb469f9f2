use super::{Changed, Record, change};
use crate::{
    caller::Access,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    limits::check,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Make a parked task claimable again.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unpark {
    pub task: String,
    /// Request id: repeating the call with the same id changes nothing.
    #[serde(default)]
    pub request: Option<String>,
}

impl Op for Unpark {
    const NAME: &'static str = "task/unpark";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"task":"auth-3"}"#;
    refuses![NotReady, AlreadyFinished, Cancelled];
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        check::request(self.request.as_deref())?;
        change(tx, &self.task, "task.unparked", None, |task, _| unpark(task)).await
    }
}

fn unpark(task: &mut Record) -> Result<()> {
    task.unfinished()?;
    if task.parked.take().is_none() {
        return Err(Error::new(Code::NotReady, format!("task `{}` is not parked", task.id)));
    }
    Ok(())
}
