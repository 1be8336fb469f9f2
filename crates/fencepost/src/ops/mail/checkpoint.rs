use super::{
    message_token,
    record::{held, load_locked},
};
use crate::{
    caller::Access,
    db::{Stmt, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Error, Result},
    lease::hold::{check_written, write_logged},
    limits::{BODY_MAX, NAME_MAX, check},
    ops::claim::{Checkpoint, checkpoint::already_reached},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Save a checkpoint of the work on a message, for the next run that claims it. Ordinals only rise: an older checkpoint
/// that arrives late changes nothing, and the reply is the newer one.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SaveCheckpoint {
    pub token: String,
    /// Must rise with every checkpoint of the message, also across attempts.
    pub ordinal: i64,
    pub phase: String,
    #[serde(default)]
    pub data: Option<serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Saved {
    /// The latest checkpoint.
    pub checkpoint: Checkpoint,
}

impl Op for SaveCheckpoint {
    const NAME: &'static str = "mail/checkpoint";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::UnderClaim;
    const EXAMPLE: &'static str =
        r#"{"token":"message/812@1","ordinal":1,"phase":"half of the files are copied"}"#;
    refuses![LeaseExpired, AlreadyFinished];
    type Reply = Saved;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::holds(&self.token)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Saved> {
        let (token, id) = message_token(&self.token)?;
        check::range("ordinal", self.ordinal, 1, i64::MAX)?;
        check::line("phase", &self.phase, NAME_MAX)?;
        let data = self.data.as_ref().map(ToString::to_string);
        check::optional_json("data", data.as_deref(), BODY_MAX)?;
        let found = held(load_locked(tx, &[id]).await?.remove(&id), &token, tx)?;
        let new = Checkpoint { ordinal: self.ordinal, phase: self.phase, data: self.data };
        let stored = tx.query("select checkpoint from message_doc where message = ?1", params![id]).await?;
        let stored: Option<String> = stored.first().map_or(Ok(None), |row| row.get("checkpoint"))?;
        let stored = stored.map(|text| serde_json::from_str(&text)).transpose().map_err(Error::internal)?;
        if let Some(reached) = already_reached(stored, &new)? {
            return Ok(Saved { checkpoint: reached });
        }
        let text = serde_json::to_string(&new).map_err(Error::internal)?;
        let details = serde_json::json!({ "ordinal": new.ordinal, "phase": new.phase });
        // The write itself checks the claim.
        let save = Stmt::write(
                "update message_doc set checkpoint_n = ?2, checkpoint = ?3
                 where message = ?1 and (checkpoint_n is null or checkpoint_n < ?2)
                 and exists (
                   select 1 from message join run on run.key = message.run
                   where message.id = ?1 and message.fence = ?4 and run.ended_at is null and run.expires_at > ?5
                   and (message.until_at is null or message.until_at > ?5))",
                params![id, new.ordinal, text, token.fence, tx.now],
            );
        let event = found.event("message.checkpoint", &found).details(details).insert(tx);
        check_written(write_logged(tx, save, event).await?, &token)?;
        Ok(Saved { checkpoint: new })
    }
}
