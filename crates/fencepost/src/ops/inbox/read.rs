use super::{Handled, handle};
use crate::{
    caller::Access,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::Result,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Mark a message as read. It needs no answer.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// The message's number if it is unread, or its token if it is claimed.
    pub message: String,
}

impl Op for Read {
    const NAME: &'static str = "inbox/read";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"message":"812"}"#;
    refuses![AlreadyClaimed, LeaseExpired, AlreadyFinished];
    type Reply = Handled;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::holds(&self.message)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Handled> {
        handle(tx, &self.message, "read", None).await
    }
}
