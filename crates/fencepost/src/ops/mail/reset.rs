use super::{
    record::{Record, load_locked, save},
    release::{events, give_back},
};
use crate::{
    caller::Access,
    db::{Row, Tx},
    engine::op::{OnRetry, Op, erased},
    error::{Error, Result},
    lease::Under,
    limits::{TEXT_MAX, check},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Messages per call; the caller repeats the call while there are more.
const BATCH: i64 = 1000;

/// Release every message that a run holds, or that is claimed in a mailbox, for a planned restart. The messages keep
/// their places, the attempts do not count, and the tokens become invalid. The runs stay alive.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reset {
    /// Only messages that this run holds.
    #[serde(default)]
    pub run: Option<String>,
    /// Only messages of this mailbox.
    #[serde(default)]
    pub mailbox: Option<String>,
    /// Reason, for the log.
    #[serde(default)]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WasReset {
    /// Number of messages that were released.
    pub reset: u64,
    /// There are more: repeat the call.
    pub more: bool,
}

impl Op for Reset {
    const NAME: &'static str = "mail/reset";
    const ACCESS: Access = Access::Agent;
    // Never: a repeat would also release messages that were claimed meanwhile.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"mailbox":"builds"}"#;
    type Reply = WasReset;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<WasReset> {
        self.run.as_deref().map_or(Ok(()), crate::lease::run::check_name)?;
        self.mailbox.as_deref().map_or(Ok(()), |name| check::path_name("mailbox", name))?;
        check::optional_text("reason", self.reason.as_deref(), TEXT_MAX)?;
        let rows = match (&self.run, &self.mailbox) {
            (None, None) => {
                return Err(Error::invalid("run", "or `mailbox` must be given"));
            }
            (None, Some(mailbox)) => {
                let sql = "select message.id from message join run on run.key = message.run
                           where message.run is not null and message.mailbox = ?1
                           and run.ended_at is null and run.expires_at > ?3 order by message.id limit ?2";
                tx.query(sql, params![mailbox, BATCH, tx.now]).await?
            }
            (Some(run), mailbox) => {
                let sql = "select message.id from run join message on message.run = run.key
                           where run.name = ?1 and run.ended_at is null and run.expires_at > ?4
                           and (cast(?3 as text) is null or message.mailbox = ?3) order by message.id limit ?2";
                tx.query(sql, params![run, BATCH, mailbox.as_deref(), tx.now]).await?
            }
        };
        let ids = rows.iter().map(|row: &Row| row.get("id")).collect::<Result<Vec<i64>>>()?;
        if ids.is_empty() {
            return Ok(WasReset { reset: 0, more: false });
        }
        let mut changes: Vec<(Record, Record)> = Vec::with_capacity(ids.len());
        let mut found: Vec<Record> = load_locked(tx, &ids).await?.into_values().collect();
        found.sort_by_key(|message| message.id);
        for message in found {
            let Some(hold) = message.hold() else { continue };
            tx.caller.may_use(&hold.run, hold.agent.as_deref())?;
            // A dead run's messages are left to expiry: the attempt counts, and the mailbox's `replay` applies.
            if hold.is_alive(tx.now) {
                let back = give_back(&message, "reset", tx);
                changes.push((message, back));
            }
        }
        let reason = self.reason.as_deref();
        let events =
            events("message.reset", &changes).into_iter().map(|event| event.because(reason)).collect();
        save(tx, &changes, Under::NoClaim, events).await?;
        Ok(WasReset { reset: changes.len() as u64, more: ids.len() as i64 == BATCH })
    }
}
