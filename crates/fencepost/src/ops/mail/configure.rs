use super::{
    Mailbox, Replay, by_name, mailboxes,
    pause::Changed,
    stats::{self, Box},
};
use crate::{
    caller::Access,
    clock::Millis,
    db::{Batch, Stmt, Tx},
    engine::op::{OnRetry, Op, erased, refuses},
    error::{Code, Error, Result},
    lease::hold::write_logged,
    limits::{ATTEMPTS_MAX, TTL_MAX, check},
    log::Event,
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Change the settings of a mailbox. Fields that are left out stay unchanged. A mailbox that does not exist is created.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Configure {
    pub mailbox: String,
    /// Hand out the messages of each lane in order, one at a time, also through retries. Fixed when the mailbox is
    /// created: it cannot be changed later.
    #[serde(default)]
    pub strict: Option<bool>,
    /// Default lease of a run that claims from this mailbox (default 5 minutes).
    #[serde(default)]
    pub ttl_ms: Option<Millis>,
    /// Claims of a message before it fails (default 3). Applies to messages that are pushed from now on.
    #[serde(default)]
    pub max_attempts: Option<i64>,
    /// Backoff after the first failure; it doubles with each further failure (default 10 s).
    #[serde(default)]
    pub backoff_ms: Option<Millis>,
    /// Treatment of a message whose holder was lost while processing it (default `retry`).
    #[serde(default)]
    pub replay: Option<Replay>,
    /// Time to keep a finished message (default 30 days). Applies to messages that finish from now on. A message with
    /// a key is kept for at least 7 days.
    #[serde(default)]
    pub retain_ms: Option<Millis>,
    /// Number of processed messages to keep, the latest ones; 0 for no limit. Failed messages are kept for `retain_ms`.
    #[serde(default)]
    pub retain_count: Option<i64>,
}

impl Op for Configure {
    const NAME: &'static str = "mail/configure";
    const ACCESS: Access = Access::Agent;
    // Never: a repeat would overwrite settings that somebody changed meanwhile.
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"mailbox":"builds"}"#;
    refuses![NotReady];
    type Reply = Changed;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Changed> {
        check::path_name("mailbox", &self.mailbox)?;
        tx.caller.may_manage(&self.mailbox)?;
        check::lease("ttl_ms", self.ttl_ms)?;
        check::range("max_attempts", self.max_attempts.unwrap_or(1), 1, ATTEMPTS_MAX)?;
        check::span("backoff_ms", self.backoff_ms.unwrap_or_default(), Millis(0), TTL_MAX)?;
        check::span("retain_ms", self.retain_ms.unwrap_or_default(), Millis(0), Millis(TTL_MAX.0 * 400))?;
        check::range("retain_count", self.retain_count.unwrap_or(0), 0, 1_000_000)?;
        let had = lock(tx, &self.mailbox, self.strict).await?;
        if let (Some(had), Some(strict)) = (&had, self.strict)
            && had.settings.strict != strict
        {
            let is = if had.settings.strict { "is strict" } else { "is not strict" };
            return Err(Error::new(
                Code::NotReady,
                format!("mailbox `{}` {is}, and that cannot be changed", self.mailbox),
            )
            .with("field", "strict")
            .hint("choose another name: only a new mailbox can be made strict or not"));
        }
        let event = Event {
            topic: Some(Topic::mail(&self.mailbox)),
            ..Event::new("mailbox.configured", format!("mailbox/{}", self.mailbox))
        };
        let details = serde_json::to_value(&self).map_err(Error::internal)?;
        let update = Stmt::write(
            "update mailbox set ttl_ms = coalesce(?2, ttl_ms), max_attempts = coalesce(?3, max_attempts),
                   backoff_ms = coalesce(?4, backoff_ms), replay = coalesce(?5, replay),
                   retain_ms = coalesce(?6, retain_ms),
                   retain_count = nullif(coalesce(?7, retain_count), 0) where name = ?1",
            params![
                &self.mailbox,
                self.ttl_ms,
                self.max_attempts,
                self.backoff_ms,
                self.replay.map(Replay::as_str),
                self.retain_ms,
                self.retain_count,
            ],
        );
        let event = event.details(details).insert(tx);
        write_logged(tx, update, event).await?;
        Ok(Changed { mailbox: show(tx, &self.mailbox).await? })
    }
}

/// Locks the mailbox's row and returns it, or `None` if this call has just created it.
async fn lock(tx: &mut Tx<'_>, name: &str, strict: Option<bool>) -> Result<Option<Mailbox>> {
    let mut batch = Batch::new();
    let made = batch.add(Stmt::write(
        "insert into mailbox(name, in_order, created_at) values (?1, ?2, ?3) on conflict (name) do nothing",
        params![name, strict.unwrap_or_default(), tx.now],
    ));
    batch.add(Stmt::lock("select 1 from mailbox where name = ?1 for update", params![name]));
    let row = batch.add(Stmt::read(mailboxes!("where name = ?1"), params![name]));
    let mut answers = tx.send(batch).await?;
    let row = by_name(&answers.take(row).rows)?.remove(name);
    Ok(row.filter(|_| answers.affected(made) == 0))
}

/// Repeating the same change does nothing.
pub(super) async fn set_paused(tx: &mut Tx<'_>, name: &str, reason: Option<&str>) -> Result<Changed> {
    super::require(tx, name).await?;
    let had = lock(tx, name, None).await?;
    if had.and_then(|mailbox| mailbox.paused).as_deref() != reason {
        let kind = if reason.is_some() { "mailbox.paused" } else { "mailbox.resumed" };
        let event = Event {
            details: reason.map(|reason| serde_json::json!({ "reason": reason })),
            topic: Some(Topic::mail(name)),
            ..Event::new(kind, format!("mailbox/{name}"))
        };
        let pause = Stmt::write("update mailbox set paused = ?2 where name = ?1", params![name, reason]);
        let event = event.insert(tx);
        write_logged(tx, pause, event).await?;
    }
    Ok(Changed { mailbox: show(tx, name).await? })
}

async fn show(tx: &mut Tx<'_>, name: &str) -> Result<Box> {
    let found = stats::of(tx, Some(name), None, 1).await?.pop();
    found.ok_or_else(|| Error::internal("the mailbox has no row"))
}
