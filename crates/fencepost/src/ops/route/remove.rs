use super::{Route, add::load};
use crate::{
    caller::Access,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased},
        prelude::Prelude,
    },
    error::Result,
    limits::{TEXT_MAX, check},
    log::Event,
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Remove a rule. Messages that it sent to an inbox stay there.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Remove {
    pub route: i64,
    /// Reason, for the log.
    #[serde(default)]
    pub reason: Option<String>,
    /// Request id: repeating the call with the same id returns the first reply.
    #[serde(default)]
    pub request: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Removed {
    pub route: Route,
}

impl Op for Remove {
    const NAME: &'static str = "route/remove";
    const ACCESS: Access = Access::Admin;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"route":1}"#;
    type Reply = Removed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Removed> {
        check::request(self.request.as_deref())?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        tx.opening.is_repeat("route.removed", None)?;
        // Repeating the call is safe, with or without a request id: the reply is the removed route.
        let removed = tx
            .execute(
                "update route set removed_at = ?2 where id = ?1 and removed_at is null",
                params![self.route, tx.now],
            )
            .await?;
        if removed == 1 {
            let event = Event {
                topic: Some(Topic::Nobody),
                ..Event::new("route.removed", format!("route/{}", self.route))
            };
            tx.one(event.because(self.reason.as_deref()).insert(tx)).await?;
        }
        Ok(Removed { route: load(tx, self.route).await? })
    }
}
