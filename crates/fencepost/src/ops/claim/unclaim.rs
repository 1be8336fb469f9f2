use crate::{
    db::tx::Tx,
    engine::op::{Access, Op, erased},
    error::{Code, Error, Result},
    names::{Resource, TEXT_MAX, Token, check},
    ops::{channel, lock, mail, task},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Take a claim away from its holder. An operator's verb: it needs no token, and it is logged.
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
    /// The run that held it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// The item's state after it.
    pub status: String,
}

impl Op for Unclaim {
    const NAME: &'static str = "claim/unclaim";
    const ACCESS: Access = Access::Admin;
    type Reply = Unclaimed;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Unclaimed> {
        let resource: Resource = self.resource.parse().map_err(|problem: String| {
            let error = Error::new(Code::Invalid, problem).with("field", "resource");
            match self.resource.parse::<Token>() {
                Ok(token) => error.hint(format!("that is the token of a claim on {}", token.resource)),
                Err(_) => error,
            }
        })?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        let reason = self.reason.as_deref();
        let (held_by, status) = match &resource {
            Resource::Task(id) => task::release::unclaim(tx, id, reason).await?,
            Resource::Message(id) => mail::release::unclaim(tx, *id, reason).await?,
            Resource::Mentions { agent, channel } => {
                channel::release::unclaim(tx, agent, channel, reason).await?
            }
            Resource::Lock(name) => lock::release::unclaim(tx, name, reason).await?,
        };
        Ok(Unclaimed { resource: self.resource, held_by, status })
    }
}
