use super::{Claim, nouns};
use crate::{
    caller::Access,
    clock::Millis,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::Result,
    ids::Token,
    lease::hold::require,
    limits::check,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Keep a claim alive: its run is renewed, and so are all claims of that run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Renew {
    pub token: String,
    /// Lengthens the lease. A shorter value has no effect, and the reply shows that.
    #[serde(default)]
    pub ttl_ms: Option<Millis>,
}

impl Renew {
    pub fn new(token: impl Into<String>) -> Self {
        Self { token: token.into(), ttl_ms: None }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Renewed {
    pub claim: Claim,
    /// The remaining lease when the reply was sent. A client that counts from before its request, on a monotonic
    /// clock, knows when the claim expires without comparing clocks.
    pub lease_ms: Millis,
}

impl Op for Renew {
    const NAME: &'static str = "claim/renew";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::UnderClaim;
    const EXAMPLE: &'static str = r#"{"token":"task/auth-3@1"}"#;
    refuses![LeaseExpired, AlreadyFinished, Cancelled];
    type Reply = Renewed;
    erased!();

    /// The prelude does the renewal; the op itself only reports it.
    fn prelude(&self) -> Prelude {
        Prelude::holds(&self.token).for_at_least(self.ttl_ms)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Renewed> {
        let token = Token::check(&self.token)?;
        check::lease("ttl_ms", self.ttl_ms)?;
        let state = nouns().of(&token.resource)?.claim_state(tx, token.resource.id()).await?;
        let hold = require(state.as_ref(), &token, tx.now)?;
        let lease_ms = hold.expires_at().since(tx.now);
        let lease_kept_ms = tx.opening.run.as_ref().and_then(|run| run.kept(self.ttl_ms));
        Ok(Renewed { claim: Claim { lease_kept_ms, ..hold.claim(&token.resource) }, lease_ms })
    }
}
