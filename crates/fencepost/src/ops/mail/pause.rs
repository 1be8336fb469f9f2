use super::{configure::set_paused, stats::Box};
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
    limits::{TEXT_MAX, check},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Pause a mailbox: no message can be claimed from it until it is resumed. Running work and pushes continue.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    pub mailbox: String,
    /// Shown to callers whose claim is refused.
    #[serde(default)]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    pub mailbox: Box,
}

impl Op for Pause {
    const NAME: &'static str = "mail/pause";
    const ACCESS: Access = Access::Agent;
    // Never: a repeat would pause a mailbox that somebody resumed meanwhile.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"mailbox":"builds"}"#;
    type Reply = Changed;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        check::path_name("mailbox", &self.mailbox)?;
        tx.caller.may_manage(&self.mailbox)?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        let reason = self.reason.filter(|reason| !reason.trim().is_empty());
        let reason = reason.unwrap_or_else(|| "no reason was given".into());
        set_paused(tx, &self.mailbox, Some(&reason)).await
    }
}
