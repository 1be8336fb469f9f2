use super::{
    Checkpoint,
    done::{held, task_token},
    load_locked, save,
};
use crate::{
    caller::Access,
    db::{Batch, Stmt, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Error, Result},
    lease::{Under, hold::check_written},
    limits::{BODY_MAX, NAME_MAX, check},
    ops::claim::checkpoint::already_reached,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Record the state of the work, for the next holder. Ordinals only rise: an older checkpoint that arrives
/// late changes nothing, and the reply is the newer one.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SaveCheckpoint {
    pub token: String,
    /// Rises with every checkpoint of the task, also across attempts.
    pub ordinal: i64,
    pub phase: String,
    #[serde(default)]
    pub data: Option<serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Saved {
    /// The latest checkpoint, which is kept.
    pub checkpoint: Checkpoint,
}

impl Op for SaveCheckpoint {
    const NAME: &'static str = "task/checkpoint";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::UnderClaim;
    const EXAMPLE: &'static str = r#"{"token":"task/auth-3@1","ordinal":1,"phase":"the lexer works"}"#;
    refuses![NotReady, LeaseExpired, AlreadyFinished, Cancelled];
    type Reply = Saved;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::holds(&self.token)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Saved> {
        let (token, id) = task_token(&self.token)?;
        check::range("ordinal", self.ordinal, 1, i64::MAX)?;
        check::line("phase", &self.phase, NAME_MAX)?;
        let data = self.data.as_ref().map(ToString::to_string);
        check::optional_json("data", data.as_deref(), BODY_MAX)?;
        let found = held(load_locked(tx, &id).await?, &token, tx)?;
        let new = Checkpoint { ordinal: self.ordinal, phase: self.phase, data: self.data };
        let stored = tx.query("select checkpoint from task_doc where task = ?1", params![found.seq]).await?;
        let stored: Option<String> = stored.first().map_or(Ok(None), |row| row.get("checkpoint"))?;
        let stored = stored.map(|text| serde_json::from_str(&text)).transpose().map_err(Error::internal)?;
        if let Some(reached) = already_reached(stored, &new)? {
            return Ok(Saved { checkpoint: reached });
        }
        let mut task = found.clone();
        task.updated_at = tx.now;
        let mut batch = Batch::new();
        let saved = save(&mut batch, &found.was(), &task, Under::Claim, tx.now);
        let text = serde_json::to_string(&new).map_err(Error::internal)?;
        let details = serde_json::json!({ "ordinal": new.ordinal, "phase": new.phase });
        batch.add(Stmt::write(
            "update task_doc set checkpoint_n = ?2, checkpoint = ?3
             where task = ?1 and (checkpoint_n is null or checkpoint_n < ?2)",
            params![task.seq, new.ordinal, text],
        ));
        batch.add(task.event("task.checkpoint", task.status()).details(details).insert(tx));
        check_written(tx.send(batch).await?.affected(saved), &token)?;
        Ok(Saved { checkpoint: new })
    }
}
