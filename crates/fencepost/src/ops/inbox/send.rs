use super::{Content, Item, mailbox};
use crate::{
    caller::Access,
    db::{Answers, Batch, Slot, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Error, Result},
    json::Json,
    limits::check,
    ops::{
        agent,
        mail::{Message, push_many},
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Send a message to an agent's inbox.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Send {
    pub agent: String,
    pub text: String,
    /// `slack`, `github`, `email`, `api`, … Default: `api`.
    #[serde(default)]
    pub source: Option<String>,
    #[serde(default)]
    pub channel: Option<String>,
    #[serde(default)]
    pub thread: Option<String>,
    /// The sender's name at the source. The agent that makes this call is stored separately (`sent_by`).
    #[serde(default)]
    pub sender: Option<String>,
    /// The rule or words that brought it here.
    #[serde(default)]
    pub matched: Option<String>,
    /// Other data from the source.
    #[serde(default)]
    pub data: Option<serde_json::Value>,
    /// The provider's delivery id: sending again with the same key creates no second message.
    #[serde(default)]
    pub key: Option<String>,
    /// Request id: repeating the call with the same id returns the first reply.
    #[serde(default)]
    pub request: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sent {
    pub item: Item,
    /// A message with this key already existed.
    pub existing: bool,
    /// No agent of this name has joined. The message waits in its inbox until one does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub agent_unknown: bool,
}

impl Op for Send {
    const NAME: &'static str = "inbox/send";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"agent":"codex-1","text":"please review auth-3"}"#;
    refuses![AlreadyFinished];
    type Reply = Sent;
    erased!();

    fn prelude(&self) -> Prelude {
        // `run` refuses a malformed name.
        let is_name = check::plain_name("agent", &self.agent).is_ok();
        let reads = if is_name { self.opening().0 } else { Batch::new() };
        Prelude::nothing().once(self.request.as_deref()).reading(reads.into_statements())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Sent> {
        check::plain_name("agent", &self.agent)?;
        check::request(self.request.as_deref())?;
        let (_, known) = self.opening();
        let known = Answers::new(std::mem::take(&mut tx.opening.read)).take(known).rows;
        let content = Content {
            source: self.source.unwrap_or_else(|| "api".into()),
            text: self.text,
            channel: self.channel,
            thread: self.thread,
            sender: self.sender,
            sent_by: tx.caller.agent.clone(),
            matched: self.matched,
            data: self.data,
            ..Content::default()
        };
        content.check("")?;
        let item = push_many::Item { key: self.key, ..push_item(mailbox(&self.agent), &content)? };
        let payload = item.payload.clone();
        let (message, existing) = put(tx, item).await?;
        // A new message needs no read: its content is known.
        let item = match existing || !tx.opening.repeat.is_empty() {
            true => super::show(tx, message.id).await?.item,
            false => Item::of(Message { payload, ..message }),
        };
        Ok(Sent { item, existing, agent_unknown: known.is_empty() })
    }
}

impl Send {
    /// The first statement of the call's transaction: reads whether the agent has joined.
    fn opening(&self) -> (Batch, Slot) {
        let mut batch = Batch::new();
        let known = batch.add(agent::known(&self.agent));
        (batch, known)
    }
}

/// The message to push for this content.
pub(crate) fn push_item(mailbox: String, content: &Content) -> Result<push_many::Item> {
    Ok(push_many::Item {
        mailbox,
        payload: Some(Json::of(content)?),
        kind: Some(content.source.clone()),
        ..push_many::Item::default()
    })
}

/// Pushes one message. Returns it, and whether it already existed with the same key.
pub(crate) async fn put(tx: &mut Tx<'_>, item: push_many::Item) -> Result<(Message, bool)> {
    let mut pushed = push_many::push(tx, vec![item]).await?;
    let message = pushed.messages.pop().ok_or_else(|| Error::internal("nothing was sent"))?;
    Ok((message, !pushed.existing.is_empty()))
}
