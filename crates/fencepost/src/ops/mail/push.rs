use super::{
    Message,
    push_many::{Item, push},
};
use crate::{
    caller::Access,
    clock::Millis,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Error, Result},
    json::Json,
    limits::check,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Push a message to a mailbox. The first message creates the mailbox.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Push {
    /// Such as `session/42`.
    pub mailbox: String,
    /// Any JSON, up to 1 MiB.
    #[serde(default)]
    pub payload: Option<Json>,
    /// Type of the message, for its consumers.
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    /// Idempotency key: a second push to the mailbox with the same key changes nothing and returns the first message.
    #[serde(default)]
    pub key: Option<String>,
    /// 0 to 100, higher first (default 50). Not allowed in a strict mailbox.
    #[serde(default)]
    pub priority: Option<i64>,
    /// Delay before it can be claimed.
    #[serde(default)]
    pub delay_ms: Option<Millis>,
    /// In a strict mailbox, the lane: messages of one lane are handed out in order, one at a time.
    #[serde(default)]
    pub lane: Option<String>,
    /// Short texts that are delivered with the message.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Claims before it fails (default: the mailbox's setting).
    #[serde(default)]
    pub max_attempts: Option<i64>,
    /// Request id: repeating the call with the same id returns the first reply.
    #[serde(default)]
    pub request: Option<String>,
}

impl Push {
    pub fn new(mailbox: impl Into<String>, payload: impl Into<Json>) -> Self {
        Self { mailbox: mailbox.into(), payload: Some(payload.into()), ..Self::default() }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pushed {
    pub message: Message,
    /// A message with this key already existed.
    pub existing: bool,
}

impl Op for Push {
    const NAME: &'static str = "mail/push";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"mailbox":"builds"}"#;
    refuses![AlreadyFinished];
    type Reply = Pushed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Pushed> {
        check::request(self.request.as_deref())?;
        tx.caller.may_push("mailbox", &self.mailbox)?;
        let item = Item {
            mailbox: self.mailbox,
            payload: self.payload,
            kind: self.kind,
            key: self.key,
            priority: self.priority,
            delay_ms: self.delay_ms,
            lane: self.lane,
            headers: self.headers,
            max_attempts: self.max_attempts,
        };
        let mut pushed = push(tx, vec![item]).await?;
        let message = pushed.messages.pop().ok_or_else(|| Error::internal("nothing was pushed"))?;
        Ok(Pushed { message, existing: !pushed.existing.is_empty() })
    }
}
