use super::{configure::set_paused, pause::Changed};
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::check,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Resume a paused mailbox: its messages can be claimed again.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    pub mailbox: String,
}

impl Op for Resume {
    const NAME: &'static str = "mail/resume";
    const ACCESS: Access = Access::Agent;
    // Never: a repeat would resume a mailbox that somebody paused meanwhile.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"mailbox":"builds"}"#;
    type Reply = Changed;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        check::path_name("mailbox", &self.mailbox)?;
        tx.caller.may_manage(&self.mailbox)?;
        set_paused(tx, &self.mailbox, None).await
    }
}
