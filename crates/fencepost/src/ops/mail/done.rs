use super::{Changed, done_many::complete};
use crate::{
    caller::Access,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Error, Result},
    json::Json,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Complete the message held under a token and store its outputs, in one transaction. Repeating the same completion
/// returns the first reply; a different one is refused.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Done {
    pub token: String,
    /// The results: any JSON, up to 100 values and 1 MiB together.
    #[serde(default)]
    pub outputs: Vec<Json>,
    /// A short label for the outcome. Default: `done`.
    #[serde(default)]
    pub outcome: Option<String>,
}

impl Done {
    pub fn new(token: impl Into<String>) -> Self {
        Self { token: token.into(), ..Self::default() }
    }
}

impl Op for Done {
    const NAME: &'static str = "mail/done";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::UnderClaim;
    const EXAMPLE: &'static str = r#"{"token":"message/812@1"}"#;
    refuses![LeaseExpired, AlreadyFinished];
    type Reply = Changed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::holds(&self.token)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        let result = complete(tx, std::slice::from_ref(&self)).await?.pop();
        let message = result.ok_or_else(|| Error::internal("nothing was completed"))??;
        Ok(Changed { message })
    }
}
