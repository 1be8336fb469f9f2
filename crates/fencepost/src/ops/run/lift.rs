use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
    lease::run::check_name,
    limits::{TEXT_MAX, check},
    log::Event,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The default of `for_ms`, and the longest time.
const FOR: Millis = Millis::minutes(10);
const LONGEST: Millis = Millis::days(1);

/// Record in the log that a person lets a run do guarded commands without a claim, for a time. The client's hooks enforce it, on
/// the machine of the session; the fleet only keeps the record. An agent's key is refused.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lift {
    /// The run of the session. It may be over, or may never have begun.
    pub run: String,
    /// How long (default 10 minutes, at most a day). 0 ends an earlier one.
    #[serde(default)]
    pub for_ms: Option<Millis>,
    #[serde(default)]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Lifted {
    pub run: String,
    pub until: Time,
}

impl Op for Lift {
    const NAME: &'static str = "run/lift";
    // An agent must not be able to write that a person lifted its guard.
    const ACCESS: Access = Access::Admin;
    // A repeat only writes a second line to the log.
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"run":"claude-7f3a","for_ms":600000,"reason":"hotfix"}"#;
    type Reply = Lifted;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Lifted> {
        check_name(&self.run)?;
        check::range("for_ms", self.for_ms.unwrap_or(FOR).0, 0, LONGEST.0)?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        let until = tx.now.plus(self.for_ms.unwrap_or(FOR));
        let event = Event {
            run: Some(self.run.clone()),
            topic: Some(Topic::Nobody),
            ..Event::new("run.lifted", format!("run/{}", self.run))
        };
        let details = serde_json::json!({ "until": until });
        tx.one(event.details(details).because(self.reason.as_deref()).insert(tx)).await?;
        Ok(Lifted { run: self.run, until })
    }
}
