use super::{Changed, record::require_message, view::full};
use crate::{
    error::Result,
    json::Json,
    op::{Access, Op},
    params,
    tx::Tx,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Show a message with everything that is kept of it, and what came of it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Show {
    pub message: i64,
}

impl Op for Show {
    const NAME: &'static str = "mail/show";
    const ACCESS: Access = Access::Reader;
    const READS: bool = true;
    type Reply = Changed;

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        let message = require_message(tx, self.message).await?;
        let (_, mut views) = full(tx, vec![message], vec![]).await?;
        let mut message = views.remove(0);
        let outputs = tx
            .query("select output from message_output where message = ?1 order by n", params![self.message])
            .await?;
        for mut row in outputs {
            message.outputs.push(Json::stored(row.take("output")?)?);
        }
        Ok(Changed { message })
    }
}
