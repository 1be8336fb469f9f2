use super::{Changed, Message, now, record::require_message, view::full};
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
    json::Json,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Show a message with all its fields, including its outputs.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Show {
    pub message: i64,
}

impl Op for Show {
    const NAME: &'static str = "mail/show";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = r#"{"message":1}"#;
    const READS: bool = true;
    type Reply = Changed;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        Ok(Changed { message: of(tx, self.message).await? })
    }
}

pub(crate) async fn of(tx: &mut Tx<'_>, id: i64) -> Result<Message> {
    let message = require_message(tx, id).await?;
    let message = now(tx, vec![message]).await?;
    let mut message = full(tx, message).await?.remove(0);
    let outputs =
        tx.query("select output from message_output where message = ?1 order by n", params![id]).await?;
    for mut row in outputs {
        message.outputs.push(Json::stored(row.take("output")?)?);
    }
    Ok(message)
}
