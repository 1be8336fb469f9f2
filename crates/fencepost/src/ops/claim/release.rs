use crate::{
    db::tx::Tx,
    engine::{
        op::{Access, Op, erased, refuses},
        prelude::Before,
    },
    error::Result,
    names::{Resource, TEXT_MAX, Token, check},
    ops::{channel, lock, mail, task},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Give back what you hold, unfinished. It is anyone's to take again, and the attempt does not count.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Release {
    pub token: String,
    /// Kept with the task, for whoever takes it next.
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
    /// The item's state after it.
    pub status: String,
}

impl Op for Release {
    const NAME: &'static str = "claim/release";
    const ACCESS: Access = Access::Agent;
    refuses![LeaseExpired, AlreadyFinished, Cancelled];
    type Reply = Released;
    erased!();

    fn before(&self) -> Before {
        Before::holds(&self.token)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Released> {
        let token = Token::check(&self.token)?;
        check::optional_text("note", self.note.as_deref(), TEXT_MAX)?;
        let status = match &token.resource {
            Resource::Task(id) => task::release::release(tx, id, &token, self.note.as_deref()).await?,
            Resource::Message(id) => {
                let released = mail::release::release(tx, &HashMap::from([(*id, token.clone())])).await?;
                released.first().map_or("pending", |message| message.status.as_str()).into()
            }
            Resource::Mentions { agent, channel } => {
                channel::release::release(tx, agent, channel, &token).await?
            }
            Resource::Lock(name) => lock::release::release(tx, name, &token).await?,
        };
        Ok(Released { resource: token.resource.to_string(), status })
    }
}
