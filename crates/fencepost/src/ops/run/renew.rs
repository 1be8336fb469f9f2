use super::Run;
use crate::{
    caller::Access,
    clock::Millis,
    db::RunRow,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    lease::run::{BY_NAME, check_name},
    limits::check,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Renew a run. One renewal covers all its claims.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Renew {
    pub run: String,
    /// Lengthens the lease. A shorter value has no effect; the reply shows the lease in force.
    #[serde(default)]
    pub ttl_ms: Option<Millis>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Renewed {
    pub run: Run,
}

impl Op for Renew {
    const NAME: &'static str = "run/renew";
    const ACCESS: Access = Access::Agent;
    // Never: a repeat could renew a new run of the same name.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"run":"r-1"}"#;
    refuses![LeaseExpired];
    type Reply = Renewed;
    erased!();

    /// The prelude does the renewal; the op itself only reports it.
    fn prelude(&self) -> Prelude {
        Prelude::renews(&self.run, self.ttl_ms)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Renewed> {
        check_name(&self.run)?;
        check::lease("ttl_ms", self.ttl_ms)?;
        let rows = tx.query(BY_NAME, params![&self.run]).await?;
        match rows.first().map(RunRow::read).transpose()? {
            Some(run) if run.is_alive(tx.now) => Ok(Renewed { run: run.view(tx.now) }),
            _ => Err(Error::new(Code::LeaseExpired, format!("run `{}` is over, or never began", self.run))
                .hint("claim again: a new run begins with its first claim")),
        }
    }
}
