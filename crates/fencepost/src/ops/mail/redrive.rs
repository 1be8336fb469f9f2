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

/// Make failed or held messages pending again, with all their attempts: the given messages, or those of a mailbox, a
/// bounded number per call.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Redrive {
    /// The ids of the messages.
    #[serde(default)]
    pub messages: Vec<i64>,
    /// Every failed or held message of this mailbox.
    #[serde(default)]
    pub mailbox: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Redriven {
    /// Ids of the messages that are pending again.
    pub messages: Vec<i64>,
    /// There are more: repeat the call.
    pub more: bool,
}

impl Op for Redrive {
    const NAME: &'static str = "mail/redrive";
    const ACCESS: Access = Access::Agent;
    // Never: a repeat would also redrive messages that failed meanwhile.
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
        // A dead run holds it. Reads already show it as failed or held, so expire the claim first.
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
                // Repeating the call is safe.
                Status::Pending => {}
                status if named => {
                    let message = format!("message {id} is {}", status.as_str());
                    return Err(Error::new(Code::NotReady, message)
                        .hint("only failed or held messages can be redriven"));
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
        save(tx, &changes, Under::NoClaim, events).await?;
        if !finished.is_empty() {
            tx.send(behind_again(&finished)).await?;
        }
        Ok(Redriven { messages: changes.iter().map(|(before, _)| before.id).collect(), more })
    }
}

/// The rule: pending again, with no attempts used.
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

/// A finished message left its lane. It goes behind the lane's current message, or is first again if there is none.
fn behind_again(messages: &[i64]) -> Batch {
    let behind = by_keys!(write, messages, "update message set behind = 1 where id", "");
    Batch::from([behind, lane::resume(messages)])
}

/// The given ids, or a batch of the failed and held messages of a mailbox; and whether there are more.
pub(super) async fn chosen(
    tx: &mut Tx<'_>,
    messages: &[i64],
    mailbox: Option<&str>,
) -> Result<(Vec<i64>, bool)> {
    if messages.is_empty() == mailbox.is_none() {
        return Err(Error::invalid("messages", "or `mailbox` must be given, but not both"));
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
    // Reads already show these as failed or held, too.
    let overdue = overdue(tx, Some(mailbox)).await?;
    let given_up =
        overdue.iter().filter(|message| matches!(message.phase, Phase::Failed(_) | Phase::SetAside));
    ids.extend(given_up.map(|message| message.id));
    ids.sort_unstable();
    let more = ids.len() as i64 > BATCH;
    ids.truncate(usize::try_from(BATCH).unwrap_or(usize::MAX));
    Ok((ids, more))
}
