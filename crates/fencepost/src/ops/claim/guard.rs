use super::{Claim, Verdict, nouns};
use crate::{
    caller::Access,
    db::Tx,
    engine::op::{OnRetry, Op, erased},
    error::Result,
    ids::Token,
    lease::hold::{ENDED_BY_HOLDER, verdict},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Ask whether a claim is still alive, before a side effect. A negative answer is a reply, not an error.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    pub token: String,
}

impl Guard {
    pub fn new(token: impl Into<String>) -> Self {
        Self { token: token.into() }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Guarded {
    pub ok: bool,
    /// `ok`, or the reason why not.
    pub reason: Verdict,
    /// The current claim, if the item is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// The verb by which this token's holder ended the claim itself: `done`, `fail`, `release`. Not set if the claim was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<String>,
}

impl Op for Guard {
    const NAME: &'static str = "claim/guard";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = r#"{"token":"task/auth-3@1"}"#;
    const READS: bool = true;
    type Reply = Guarded;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Guarded> {
        let token = Token::check(&self.token)?;
        let state = nouns().of(&token.resource)?.claim_state_now(tx, token.resource.id()).await?;
        let reason = verdict(state.as_ref(), token.fence, tx.now);
        let last = state.as_ref().and_then(|state| state.last.as_ref());
        let own =
            last.filter(|last| last.fence == token.fence && ENDED_BY_HOLDER.contains(&last.verb.as_str()));
        let ended_by = own.map(|last| last.verb.clone());
        let hold = state.and_then(|state| state.hold).filter(|hold| hold.is_alive(tx.now));
        let claim = hold.map(|hold| hold.claim(&token.resource));
        Ok(Guarded { ok: reason == Verdict::Ok, reason, claim, ended_by })
    }
}
