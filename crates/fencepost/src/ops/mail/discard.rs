use super::{
    Phase, not_found,
    record::{Record, load_locked, save},
};
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased, refuses},
    error::{Code, Error, Result},
    lease::Under,
    limits::{CLAIMS_MAX, TEXT_MAX, check},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Discard pending or held messages: they fail with outcome `discarded`. `mail/redrive` makes them pending again.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Discard {
    pub messages: Vec<i64>,
    #[serde(default)]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Discarded {
    /// Ids of the messages that were discarded.
    pub messages: Vec<i64>,
}

impl Op for Discard {
    const NAME: &'static str = "mail/discard";
    const ACCESS: Access = Access::Agent;
    // Never: a repeat would discard messages that somebody redrove meanwhile.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"messages":[1]}"#;
    refuses![AlreadyClaimed, AlreadyFinished];
    type Reply = Discarded;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Discarded> {
        check::range("messages", self.messages.len() as i64, 1, CLAIMS_MAX)?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        let mut ids = self.messages;
        ids.sort_unstable();
        ids.dedup();
        let mut found = load_locked(tx, &ids).await?;
        let mut changes: Vec<(Record, Record)> = Vec::with_capacity(ids.len());
        for id in ids {
            let message = found.remove(&id).ok_or_else(|| not_found(id))?;
            tx.caller.may_manage(&message.mailbox)?;
            match &message.phase {
                Phase::Processing(hold) if hold.is_alive(tx.now) => {
                    let text = format!("message {id} is held by {}", hold.describe());
                    return Err(Error::new(Code::AlreadyClaimed, text)
                        .with("holder", &hold.run)
                        .with("expires_at", hold.expires_at())
                        .hint(format!("end its claim first: fence unclaim message/{id}")));
                }
                Phase::Processed(_) => {
                    return Err(Error::new(
                        Code::AlreadyFinished,
                        format!("message {id} is already processed"),
                    ));
                }
                // Repeating the call is safe.
                Phase::Failed(_) => continue,
                _ => {}
            }
            let mut after = Record {
                outcome: Some("discarded".into()),
                failure_reason: self.reason.clone().or_else(|| message.failure_reason.clone()),
                delayed_until: None,
                updated_at: tx.now,
                ..message.clone()
            };
            // A dead run may still hold it.
            after.end_claim("lapse", &[], Phase::Failed(tx.now));
            changes.push((message, after));
        }
        let details = self.reason.as_ref().map(|reason| serde_json::json!({ "reason": reason }));
        let events = changes.iter().map(|(before, after)| crate::log::Event {
            details: details.clone(),
            ..after.event("message.discarded", before)
        });
        let events = events.collect();
        save(tx, &changes, Under::NoClaim, events).await?;
        Ok(Discarded { messages: changes.iter().map(|(before, _)| before.id).collect() })
    }
}
