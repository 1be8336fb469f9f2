use super::{Claim, nouns};
use crate::{
    caller::Access,
    db::{Batch, Tx},
    engine::op::{OnRetry, Op, erased},
    error::Result,
    ids::Resource,
    lease::{Hold, run},
    limits::check,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// List the live claims: all of them, or one run's.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    #[serde(default)]
    pub run: Option<String>,
    /// At most this many (default 100, at most 1000).
    #[serde(default)]
    pub limit: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Claims {
    pub claims: Vec<Claim>,
}

impl Op for List {
    const NAME: &'static str = "claim/list";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = "{}";
    const READS: bool = true;
    type Reply = Claims;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Claims> {
        let limit = self.limit.unwrap_or(100);
        check::range("limit", limit, 1, 1000)?;
        let run = self.run.as_deref();
        run.map_or(Ok(()), run::check_name)?;
        let mut batch = Batch::new();
        let parts: Vec<_> = nouns()
            .iter()
            .map(|noun| (noun.noun(), batch.add(nouns().live_claims(noun, tx.now, run, limit))))
            .collect();
        let mut answers = tx.send(batch).await?;
        let mut claims = Vec::new();
        for (noun, part) in parts {
            for mut row in answers.take(part).rows {
                if let Some(hold) = Hold::read(&mut row)? {
                    let id = row.take::<String>("resource_id")?;
                    let waiting_at = row.take("run_waiting_at")?;
                    claims.push(Claim { waiting_at, ..hold.claim(&Resource::new(noun, id)) });
                }
            }
        }
        Ok(Claims { claims })
    }
}
