use super::claim::{Claimed, Wanted};
use crate::{
    caller::Access,
    clock::Millis,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::Result,
    limits::{CLAIMS_MAX, check},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Claim up to a number of ready tasks at once. A task whose last claim lapsed is claimed alone. Spend limits refuse or skip tasks as
/// in `task/claim`. While a board is at its limit, a claim without a board takes the tasks of the other boards board by board.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimMany {
    pub count: i64,
    /// Only from this board.
    #[serde(default)]
    pub board: Option<String>,
    /// Only with this tag.
    #[serde(default)]
    pub tag: Option<String>,
    /// The run that will hold the tasks. It is opened if it does not exist.
    pub run: String,
    #[serde(default)]
    pub agent: Option<String>,
    #[serde(default)]
    pub ttl_ms: Option<Millis>,
    #[serde(default)]
    pub max_ms: Option<Millis>,
    /// If no task is ready, wait up to this long (at most 10 minutes; repeat the call to wait longer). Each attempt
    /// renews the run, waiting does not: renew a run that holds other items meanwhile, or its lease expires.
    #[serde(default)]
    pub wait_ms: Option<Millis>,
    /// Request id: repeating the call with the same id returns the first reply.
    #[serde(default)]
    pub request: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimedMany {
    pub claims: Vec<Claimed>,
}

impl Op for ClaimMany {
    const NAME: &'static str = "task/claim_many";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"count":1,"run":"r-1"}"#;
    refuses![NoneReady, BoardFinished, LeaseExpired, BudgetRefused];
    type Reply = ClaimedMany;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::claims(&self.run, self.ttl_ms).once(self.request.as_deref())
    }

    fn wait(&self) -> Option<Millis> {
        self.wait_ms
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<ClaimedMany> {
        check::range("count", self.count, 1, CLAIMS_MAX)?;
        check::request(self.request.as_deref())?;
        let wanted = Wanted {
            board: self.board,
            tag: self.tag,
            run: self.run,
            agent: self.agent,
            ttl: self.ttl_ms,
            max: self.max_ms,
            one_at_a_time: false,
        };
        Ok(ClaimedMany { claims: wanted.best(tx, self.count).await? })
    }
}
