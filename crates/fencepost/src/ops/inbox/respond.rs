use super::{Handled, handle};
use crate::{
    caller::Access,
    db::Tx,
    engine::{
        op::{Op, erased, refuses},
        prelude::Prelude,
    },
    error::Result,
    json::Json,
    limits::{OUTPUT_MAX, check},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Answer a message: the answer is stored with it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Respond {
    /// Its number while it is unread, or its token while it is held.
    pub message: String,
    pub text: String,
}

impl Op for Respond {
    const NAME: &'static str = "inbox/respond";
    const ACCESS: Access = Access::Agent;
    refuses![AlreadyClaimed, LeaseExpired, AlreadyFinished];
    const IDEMPOTENT: bool = true;
    type Reply = Handled;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::holds(&self.message)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Handled> {
        check::line("text", &self.text, OUTPUT_MAX)?;
        handle(tx, &self.message, "responded", Some(Json::of(&self.text)?)).await
    }
}
