use super::{Content, Handled, Item, mailbox};
use crate::{
    before::Before,
    error::{Error, Result},
    json::Json,
    mail,
    names::check,
    op::{Access, Op},
    tx::Tx,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Send something to an agent's inbox.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Send {
    pub agent: String,
    pub text: String,
    /// `slack`, `github`, `email`, `api`, … (`api` unless said)
    #[serde(default)]
    pub source: Option<String>,
    #[serde(default)]
    pub channel: Option<String>,
    #[serde(default)]
    pub thread: Option<String>,
    #[serde(default)]
    pub sender: Option<String>,
    /// The words that brought it here.
    #[serde(default)]
    pub matched: Option<String>,
    /// Whatever else the source said.
    #[serde(default)]
    pub data: Option<serde_json::Value>,
    /// The provider's delivery id: sent again with the same, it is one message.
    #[serde(default)]
    pub key: Option<String>,
    /// Asking again with the same id gives the first answer.
    #[serde(default)]
    pub request: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sent {
    pub item: Item,
    /// It was there already, by its key.
    pub existing: bool,
}

impl Op for Send {
    const NAME: &'static str = "inbox/send";
    const ACCESS: Access = Access::Agent;
    type Reply = Sent;

    fn before(&self) -> Before {
        Before::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Sent> {
        check::plain_name("agent", &self.agent)?;
        let source = self.source.unwrap_or_else(|| "api".into());
        let content = Content {
            source: source.clone(),
            text: self.text,
            channel: self.channel,
            thread: self.thread,
            sender: self.sender,
            matched: self.matched,
            data: self.data,
        };
        content.check("")?;
        let push = mail::push_many::Item {
            mailbox: mailbox(&self.agent),
            payload: Some(Json::of(&content)?),
            kind: Some(source),
            key: self.key,
            ..Default::default()
        };
        check::request(self.request.as_deref())?;
        let mut pushed = mail::push_many::push(tx, vec![push]).await?;
        let message = pushed.messages.pop().ok_or_else(|| Error::internal("nothing was sent"))?;
        let existing = !pushed.existing.is_empty();
        let Handled { item } = super::show(tx, message.id).await?;
        Ok(Sent { item, existing })
    }
}
