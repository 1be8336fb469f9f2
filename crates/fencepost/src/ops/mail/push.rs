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

/// Put a message into a mailbox. The mailbox is made by its first message.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Push {
    /// `session/42`
    pub mailbox: String,
    /// Any JSON, up to 1 MiB.
    #[serde(default)]
    pub payload: Option<Json>,
    /// What kind of message it is, for whoever takes it.
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    /// A second push with the same key, into the same mailbox, changes nothing and gives the first message.
    #[serde(default)]
    pub key: Option<String>,
    /// 0 to 100, higher first (50 unless said). A strict mailbox has none.
    #[serde(default)]
    pub priority: Option<i64>,
    /// It cannot be claimed before this much time has passed.
    #[serde(default)]
    pub delay_ms: Option<Millis>,
    /// What order is kept by, in a strict mailbox: messages of one lane are handled one at a time.
    #[serde(default)]
    pub lane: Option<String>,
    /// Small texts that travel with it.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// How often it may be claimed before it has failed (the mailbox's setting unless said).
    #[serde(default)]
    pub max_attempts: Option<i64>,
    /// Asking again with the same id gives the first answer.
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
    /// It was there already, by its key.
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
