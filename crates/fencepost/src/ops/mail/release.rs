use super::{
    Message, Phase, Status,
    claimable::message_number,
    message_token,
    record::{Record, held, load_locked, save},
};
use crate::{
    caller::Access,
    clock::Millis,
    db::{Delivered, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Error, Result},
    ids::Token,
    lease::claimable::Unclaimed,
    lease::{Hold, Under, hold::is_repeat},
    limits::{CLAIMS_MAX, check},
    log::Event,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Release messages without processing them: all of them, or none if one of the claims is over. They keep their place
/// in the queue, and the attempt does not count.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Release {
    pub tokens: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Released {
    pub messages: Vec<Message>,
}

impl Op for Release {
    const NAME: &'static str = "mail/release";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::UnderClaim;
    const EXAMPLE: &'static str = r#"{"tokens":["message/812@1"]}"#;
    refuses![LeaseExpired, AlreadyFinished];
    type Reply = Released;
    erased!();

    /// Messages that are released together were claimed by one run, so the first token names the run.
    fn prelude(&self) -> Prelude {
        self.tokens.first().map_or_else(Prelude::nothing, |first| Prelude::holds(first))
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Released> {
        check::range("tokens", self.tokens.len() as i64, 1, CLAIMS_MAX)?;
        let mut tokens = HashMap::new();
        for token in &self.tokens {
            let (token, id) = message_token(token)?;
            if tokens.insert(id, token).is_some() {
                return Err(Error::invalid("tokens", format!("names message {id} twice")));
            }
        }
        let released = release(tx, &tokens, None, "release").await?;
        Ok(Released { messages: released.into_iter().map(|message| message.view(tx.now)).collect() })
    }
}

/// The rule: pending again at its old place, with the attempt given back.
pub(super) fn give_back(message: &Record, verb: &str, tx: &Tx<'_>) -> Record {
    let mut back = Record { attempts: message.attempts - 1, updated_at: tx.now, ..message.clone() };
    back.end_claim(verb, &[None], Phase::Pending);
    back
}

/// Messages are given back. `delay`: nobody can claim them for this long. `verb`: stored as the end of their claims.
pub(crate) async fn release(
    tx: &mut Tx<'_>,
    tokens: &HashMap<i64, Token>,
    delay: Option<Millis>,
    verb: &str,
) -> Result<Vec<Record>> {
    let delayed_until = delay.filter(|delay| delay.0 > 0).map(|delay| tx.now.plus(delay));
    let mut ids: Vec<i64> = tokens.keys().copied().collect();
    ids.sort_unstable();
    let mut found = load_locked(tx, &ids).await?;
    let (mut released, mut changes) = (Vec::with_capacity(ids.len()), Vec::new());
    for id in ids {
        let (found, token) = (found.remove(&id), &tokens[&id]);
        let message = match found {
            Some(message) if is_repeat(tx, message.last.as_ref(), token, verb, &[None])? => {
                released.push(message);
                continue;
            }
            found => held(found, token, tx)?,
        };
        let back = Record { lapsed: 0, delayed_until, ..give_back(&message, verb, tx) };
        released.push(back.clone());
        changes.push((message, back));
    }
    let events = events("message.released", &changes);
    save(tx, &changes, Under::Claim, events).await?;
    Ok(released)
}

pub(super) fn events(kind: &'static str, changes: &[(Record, Record)]) -> Vec<Event> {
    changes.iter().map(|(before, after)| after.event(kind, before)).collect()
}

/// Releases messages whose claim was not delivered, except those that were delivered again since. Returns how many.
pub(crate) async fn return_undelivered(tx: &mut Tx<'_>, delivered: &[&Delivered]) -> Result<u64> {
    let number = |delivered: &Delivered| message_number(delivered.token.resource.id());
    let handed: HashMap<i64, &Delivered> =
        delivered.iter().map(|delivered| (number(delivered), *delivered)).collect();
    let ids: Vec<i64> = handed.keys().copied().collect();
    let mut changes = Vec::new();
    for (id, message) in load_locked(tx, &ids).await? {
        let handed = handed[&id];
        let is_same = |hold: &Hold| hold.fence == handed.token.fence && hold.is_alive(tx.now);
        if message.hold().is_some_and(is_same) && message.delivery == handed.delivery {
            let back = give_back(&message, "undeliver", tx);
            changes.push((message, back));
        }
    }
    let events = events("message.undelivered", &changes);
    save(tx, &changes, Under::Claim, events).await?;
    Ok(changes.len() as u64)
}

/// An operator ends the claim on a message.
pub(crate) async fn unclaim(tx: &mut Tx<'_>, id: i64, reason: Option<&str>) -> Result<Unclaimed> {
    let found = load_locked(tx, &[id]).await?.remove(&id).ok_or_else(|| super::not_found(id))?;
    let Some(hold) = found.hold().cloned() else {
        return Ok(Unclaimed { held_by: None, status: found.status().as_str().into() });
    };
    if !hold.is_alive(tx.now) {
        // The claim had already expired: the attempt counts.
        let lapsed = super::lapse::lapse(tx, vec![found]).await?;
        let status = lapsed.first().map_or(Status::Pending, Record::status);
        return Ok(Unclaimed { held_by: None, status: status.as_str().into() });
    }
    let back = give_back(&found, "unclaim", tx);
    let details = reason.map(|reason| serde_json::json!({ "reason": reason }));
    // The event's agent is the caller, not the holder.
    let event = Event { agent: None, details, ..back.event("message.unclaimed", &found) };
    save(tx, &[(found, back.clone())], Under::NoClaim, vec![event]).await?;
    Ok(Unclaimed { held_by: Some(hold.run), status: back.status().as_str().into() })
}
