use super::nouns;
use crate::{
    caller::Access,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::Result,
    ids::Token,
    limits::{TEXT_MAX, check},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Give back an item that you hold, unfinished. Others may claim it again, and the attempt does not count.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Release {
    pub token: String,
    /// A note for the next holder, kept with the task.
    #[serde(default)]
    pub note: Option<String>,
}

impl Release {
    pub fn new(token: impl Into<String>) -> Self {
        Self { token: token.into(), note: None }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Released {
    pub resource: String,
    /// The item's state after the release.
    pub status: String,
}

impl Op for Release {
    const NAME: &'static str = "claim/release";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::UnderClaim;
    const EXAMPLE: &'static str = r#"{"token":"task/auth-3@1"}"#;
    refuses![LeaseExpired, AlreadyFinished, Cancelled];
    type Reply = Released;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::holds(&self.token)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Released> {
        let token = Token::check(&self.token)?;
        check::optional_text("note", self.note.as_deref(), TEXT_MAX)?;
        let status = nouns().of(&token.resource)?.release(tx, &token, self.note.as_deref()).await?;
        Ok(Released { resource: token.resource.to_string(), status })
    }
}
