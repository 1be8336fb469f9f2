use super::{
    Phase, Status, lane,
    lapse::lapse,
    not_found, overdue,
    record::{Record, load_locked, save},
    release::events,
};
use crate::{
    caller::Access,
    db::{Batch, Row, Stmt, Tx, by_keys},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    lease::Under,
    limits::{CLAIMS_MAX, check},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const BATCH: i64 = 500;

/// Bring back messages that have failed or are held: pending again, with all attempts. Those that are named, or those
/// of a mailbox, a bounded number at a time.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Redrive {
    /// These, by their numbers.
    #[serde(default)]
    pub messages: Vec<i64>,
    /// All of this mailbox that have failed or are held.
    #[serde(default)]
    pub mailbox: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Redriven {
    /// Which are pending again.
    pub messages: Vec<i64>,
    /// There are more: ask again.
    pub more: bool,
}

impl Op for Redrive {
    const NAME: &'static str = "mail/redrive";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::Never;
    const EXAMPLE: &'static str = r#"{"mailbox":"builds"}"#;
    refuses![NotReady];
    type Reply = Redriven;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::due()
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Redriven> {
        let (ids, more) = chosen(tx, &self.messages, self.mailbox.as_deref()).await?;
        let named = !self.messages.is_empty();
        let mut found = load_locked(tx, &ids).await?;
        // Of a dead holder: reads show it as failed or held already.
        let mut lost: Vec<Record> =
            found.values().filter(|message| message.is_lost(tx.now)).cloned().collect();
        lost.sort_by_key(|message| message.id);
        found.extend(lapse(tx, lost).await?.into_iter().map(|message| (message.id, message)));
        let mut changes = Vec::with_capacity(ids.len());
        for id in &ids {
            let message = found.remove(id).ok_or_else(|| not_found(*id))?;
            tx.caller.may_manage(&message.mailbox)?;
            match message.status() {
                Status::Failed | Status::Held => {
                    let back = bring_back(&message, tx);
                    changes.push((message, back));
                }
                // Asking twice is safe.
                Status::Pending => {}
                status if named => {
                    let message = format!("message {id} is {}", status.as_str());
                    return Err(Error::new(Code::NotReady, message)
                        .hint("only what has failed or is held can be brought back"));
                }
                _ => {}
            }
        }
        let finished: Vec<i64> = changes
            .iter()
            .filter(|(before, _)| before.phase.is_finished() && before.lane.is_some())
            .map(|(before, _)| before.id)
            .collect();
        let events = events("message.redriven", &changes);
        save(tx, &changes, Under::Nobody, events).await?;
        if !finished.is_empty() {
            tx.send(behind_again(&finished)).await?;
        }
        Ok(Redriven { messages: changes.iter().map(|(before, _)| before.id).collect(), more })
    }
}

/// The rule.
fn bring_back(message: &Record, tx: &Tx<'_>) -> Record {
    Record {
        phase: Phase::Pending,
        outcome: None,
        attempts: 0,
        delayed_until: None,
        updated_at: tx.now,
        ..message.clone()
    }
}

/// It had left its lane. It waits for whose turn it is meanwhile, if it is anyone's, and comes next.
fn behind_again(messages: &[i64]) -> Batch {
    let behind = by_keys!(write, messages, "update message set behind = 1 where id", "");
    Batch::from([behind, lane::resume(messages)])
}

/// Messages by their numbers, or a batch of those of a mailbox that are set aside.
pub(super) async fn chosen(
    tx: &mut Tx<'_>,
    messages: &[i64],
    mailbox: Option<&str>,
) -> Result<(Vec<i64>, bool)> {
    if messages.is_empty() == mailbox.is_none() {
        return Err(Error::invalid("messages", "or else `mailbox` must be given, and not both"));
    }
    if !messages.is_empty() {
        check::range("messages", messages.len() as i64, 1, CLAIMS_MAX)?;
        let mut ids = messages.to_vec();
        ids.sort_unstable();
        ids.dedup();
        return Ok((ids, false));
    }
    let mailbox = mailbox.unwrap_or_default();
    check::path_name("mailbox", mailbox)?;
    super::require(tx, mailbox).await?;
    let batch = Batch::from([
        Stmt::read(
            "select id from message where status = 'failed' and mailbox = ?1 order by id limit ?2",
            params![mailbox, BATCH + 1],
        ),
        Stmt::read(
            "select id from message where status = 'held' and ready = 0 and run is null and finished_at is null
             and mailbox = ?1 order by id limit ?2",
            params![mailbox, BATCH + 1],
        ),
    ]);
    let rows = tx.send(batch).await?.into_rows();
    let mut ids = rows.map(|row: Row| row.get("id")).collect::<Result<Vec<i64>>>()?;
    // Reads show these as failed or held, too.
    let overdue = overdue(tx, Some(mailbox)).await?;
    let given_up =
        overdue.iter().filter(|message| matches!(message.phase, Phase::Failed(_) | Phase::SetAside));
    ids.extend(given_up.map(|message| message.id));
    ids.sort_unstable();
    let more = ids.len() as i64 > BATCH;
    ids.truncate(usize::try_from(BATCH).unwrap_or(usize::MAX));
    Ok((ids, more))
}
