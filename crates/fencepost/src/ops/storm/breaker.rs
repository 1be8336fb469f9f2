use super::{rule, state};
use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::{Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::{Error, Result},
    lease::hold::write_logged,
    limits::{TEXT_MAX, TTL_MAX, check},
    log::Event,
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Open or close the breaker by hand. While it is open, no new wake-ups are scheduled; pending and running ones go on.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Breaker {
    pub state: BreakerChange,
    /// Close it again after this time, if the backlog is below the threshold then (default: a person closes it).
    #[serde(default)]
    pub for_ms: Option<Millis>,
    #[serde(default)]
    pub reason: Option<String>,
}

/// The state to bring the breaker to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BreakerChange {
    Open,
    Close,
}

/// The breaker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BreakerState {
    pub open: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_at: Option<Time>,
    /// It may close at this time. Not set if a person has to close it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_until: Option<Time>,
}

impl From<rule::Breaker> for BreakerState {
    fn from(breaker: rule::Breaker) -> Self {
        Self { open: breaker.is_open(), opened_at: breaker.opened_at, open_until: breaker.open_until }
    }
}

impl Op for Breaker {
    const NAME: &'static str = "storm/breaker";
    const ACCESS: Access = Access::Admin;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"state":"open"}"#;
    type Reply = BreakerState;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<BreakerState> {
        check::span("for_ms", self.for_ms.unwrap_or(Millis(1)), Millis(1), TTL_MAX)?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        if self.state == BreakerChange::Close && self.for_ms.is_some() {
            return Err(Error::invalid("for_ms", "is for opening the breaker"));
        }
        let before = state::lock(tx).await?;
        let after = match self.state {
            BreakerChange::Open => rule::Breaker {
                opened_at: before.opened_at.or(Some(tx.now)),
                open_until: self.for_ms.map(|span| tx.now.plus(span)),
            },
            BreakerChange::Close => rule::Breaker::default(),
        };
        if after != before {
            let event = event(before, after).because(self.reason.as_deref()).insert(tx);
            write_logged(tx, save(after), event).await?;
        }
        if before.is_open() && !after.is_open() {
            // Pairs that only the breaker held back are looked at again at once.
            let again =
                "update reader set wake_at = ?1 where wake_why = 'breaker' and member = 1 and wake_n > read_n
                         and (wake_at is null or wake_at > ?1)";
            tx.one(Stmt::write(again, params![tx.now])).await?;
        }
        Ok(after.into())
    }
}

/// Writes the breaker.
pub(super) fn save(breaker: rule::Breaker) -> Stmt {
    Stmt::write(
        "update storm set opened_at = ?1, open_until = ?2",
        params![breaker.opened_at, breaker.open_until],
    )
}

/// The event of a change.
pub(super) fn event(before: rule::Breaker, after: rule::Breaker) -> Event {
    let word = |breaker: rule::Breaker| if breaker.is_open() { "open" } else { "closed" };
    let kind = if after.is_open() { "storm.breaker_opened" } else { "storm.breaker_closed" };
    Event { topic: Some(Topic::Nobody), ..Event::new(kind, "storm") }
        .states(word(before), word(after))
        .details(serde_json::json!({ "open_until": after.open_until }))
}
