use super::{
    Message, Phase,
    claim::{check_names, pick},
    lane,
    record::{Record, columns, save},
    view::full,
};
use crate::{
    caller::Access,
    clock::Millis,
    db::{Tx, by_keys},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    lease::Under,
    limits::{CLAIMS_MAX, check},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Take the next messages: they are completed as they are handed out, with outcome `taken`. Delivery is at most once:
/// if the caller crashes, the messages are lost. Their payload is kept until they are pruned, so that a lost reply can
/// be requested again.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Take {
    pub mailboxes: Vec<String>,
    /// At most this many (default 1, at most 1000).
    #[serde(default)]
    pub count: Option<i64>,
    /// Wait up to this long for a message (at most 10 minutes; repeat the call to wait longer).
    #[serde(default)]
    pub wait_ms: Option<Millis>,
    /// Request id: repeating the call with the same id returns the first reply.
    #[serde(default)]
    pub request: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Taken {
    pub messages: Vec<Message>,
}

impl Op for Take {
    const NAME: &'static str = "mail/take";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"mailboxes":["builds"]}"#;
    refuses![NoneReady, Paused, AlreadyFinished];
    type Reply = Taken;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::takes().once(self.request.as_deref())
    }

    fn wait(&self) -> Option<Millis> {
        self.wait_ms
    }

    /// A paused mailbox is worth waiting for: it may be resumed.
    fn not_yet(answer: Result<&Taken, &Error>) -> bool {
        answer.is_err_and(|e| e.is_not_yet() || e.code() == Code::Paused)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Taken> {
        let names = check_names(&self.mailboxes)?;
        check::request(self.request.as_deref())?;
        let count = self.count.unwrap_or(1);
        check::range("count", count, 1, CLAIMS_MAX)?;
        if tx.opening.is_repeat("message.taken", None)? {
            return repeated(tx).await;
        }
        names.iter().try_for_each(|name| tx.caller.may_take(name, tx.caller.agent.as_deref()))?;
        let (_, mut found) = pick(tx, lane::lock_next(&names, count)?, &names, count).await?;
        if found.iter().any(|message| message.lane.is_some()) {
            let ids: Vec<i64> = found.iter().map(|message| message.id).collect();
            let busy = tx.one(lane::taken(&ids)).await?.rows;
            let busy = busy.iter().map(|row| row.get("id")).collect::<Result<Vec<i64>>>()?;
            found.retain(|message| !busy.contains(&message.id));
            if found.is_empty() {
                return Err(Error::raced("another call is changing the lane at this moment"));
            }
        }
        let mut changes = Vec::with_capacity(found.len());
        for message in found {
            let taken = Record {
                phase: Phase::Processed(tx.now),
                outcome: Some("taken".into()),
                attempts: message.attempts + 1,
                updated_at: tx.now,
                ..message.clone()
            };
            changes.push((message, taken));
        }
        let events = changes.iter().map(|(before, after)| after.event("message.taken", before)).collect();
        save(tx, &changes, Under::NoClaim, events).await?;
        let taken = changes.into_iter().map(|(_, after)| after).collect();
        Ok(Taken { messages: full(tx, taken).await? })
    }
}

/// A repeated request: the messages that it took.
async fn repeated(tx: &mut Tx<'_>) -> Result<Taken> {
    let taken = tx.opening.repeat.iter().filter(|did| did.kind == "message.taken");
    let keys: Vec<i64> =
        taken.filter_map(|did| did.resource.strip_prefix("message/")?.parse().ok()).collect();
    let rows =
        tx.one(by_keys!(read, keys.as_slice(), columns!("where message.id"), "order by message.id")).await?;
    let taken = Record::read_all(rows.rows)?;
    if taken.is_empty() {
        return Err(Error::new(
            Code::AlreadyFinished,
            "the messages that this request took have been removed",
        ));
    }
    Ok(Taken { messages: full(tx, taken).await? })
}
