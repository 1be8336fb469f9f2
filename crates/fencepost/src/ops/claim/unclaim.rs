use super::nouns;
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::{Code, Error, Result},
    ids::{Resource, Token},
    lease::claimable,
    limits::{TEXT_MAX, check},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Take a claim away from its holder. For operators: it needs no token, and it is logged.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unclaim {
    /// `task/auth-3`, `message/812`, `lock/deploy`
    pub resource: String,
    #[serde(default)]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Unclaimed {
    pub resource: String,
    /// The run that held the item, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// The item's state afterwards.
    pub status: String,
}

impl Op for Unclaim {
    const NAME: &'static str = "claim/unclaim";
    const ACCESS: Access = Access::Admin;
    // Never: a repeat could end a claim that began meanwhile.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"resource":"task/auth-3"}"#;
    type Reply = Unclaimed;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Unclaimed> {
        let resource = Resource::check(&self.resource).map_err(|problem| {
            let error = Error::new(Code::Invalid, problem).with("field", "resource");
            match Token::check(&self.resource) {
                Ok(token) => error.hint(format!("that is the token of a claim on {}", token.resource)),
                Err(_) => error,
            }
        })?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        let noun = nouns().of(&resource)?;
        let unclaimed = noun.unclaim(tx, resource.id(), self.reason.as_deref()).await?;
        let claimable::Unclaimed { held_by, status } = unclaimed;
        Ok(Unclaimed { resource: self.resource, held_by, status })
    }
}
