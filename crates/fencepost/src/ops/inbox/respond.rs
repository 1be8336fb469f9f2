use super::{Handled, handle, outbox};
use crate::{
    caller::Access,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::Result,
    json::Json,
    limits::{OUTPUT_MAX, check},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Answer a message. The answer is stored with the message. If the message came from a source, such as `slack`, the answer
/// is also queued in the mailbox `outbox/SOURCE`, in the same transaction, for the program that sends it there.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Respond {
    /// The message's number if it is unread, or its token if it is claimed.
    pub message: String,
    pub text: String,
}

impl Op for Respond {
    const NAME: &'static str = "inbox/respond";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"message":"812","text":"it is fixed on main"}"#;
    refuses![AlreadyClaimed, LeaseExpired, AlreadyFinished];
    type Reply = Handled;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::holds(&self.message)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Handled> {
        check::line("text", &self.text, OUTPUT_MAX)?;
        // A repeat of the same answer queues nothing more.
        let is_repeat = outbox::is_handled(tx, &self.message).await?;
        let handled = handle(tx, &self.message, "responded", Some(Json::of(&self.text)?)).await?;
        if !is_repeat {
            outbox::queue(tx, &handled.item, self.text).await?;
        }
        Ok(handled)
    }
}
