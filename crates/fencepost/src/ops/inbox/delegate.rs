use super::{Content, Item, handle, is_open};
use crate::{
    caller::Access,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    ids::{TaskId, Token},
    json::Json,
    limits::check,
    ops::{
        mail,
        task::{self, Task},
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Delegate a message to a new or an existing task, in the transaction that completes the message. A new task inherits
/// the message's origin.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Delegate {
    /// The message's number if it is unread, or its token if it is claimed.
    pub message: String,
    /// An existing task.
    #[serde(default)]
    pub task: Option<String>,
    /// Or the title of a new task (default: the first line of the message's text, cut to 120 characters).
    #[serde(default)]
    pub title: Option<String>,
    #[serde(default)]
    pub board: Option<String>,
    /// The new task's assignee.
    #[serde(default)]
    pub to: Option<String>,
    /// The agent that the new task is offered to.
    #[serde(default)]
    pub offer: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Delegated {
    pub item: Item,
    pub task: Task,
}

impl Op for Delegate {
    const NAME: &'static str = "inbox/delegate";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::Idempotent;
    const EXAMPLE: &'static str = r#"{"message":"812"}"#;
    refuses![AlreadyClaimed, LeaseExpired, AlreadyFinished];
    type Reply = Delegated;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::holds(&self.message)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Delegated> {
        if self.task.is_some() && (self.title.is_some() || self.to.is_some() || self.offer.is_some()) {
            return Err(Error::invalid(
                "task",
                "names an existing task: leave out `title`, `to` and `offer`",
            ));
        }
        let (id, token) = match self.message.parse::<i64>() {
            Ok(id) => (id, None),
            Err(_) => {
                let token = Token::check(&self.message)?;
                let Some(id) = mail::claimable::message(&token.resource) else {
                    return Err(Error::invalid("message", "is neither a number nor a message's token"));
                };
                (id, Some(token))
            }
        };
        check::range("message", id, 1, i64::MAX)?;
        // Lock before reading: two concurrent calls must not both create a task.
        let found =
            mail::record::load_locked(tx, &[id]).await?.remove(&id).ok_or_else(|| mail::not_found(id))?;
        let message = mail::show::of(tx, id).await?;
        let ended = |token: &Token| found.last.as_ref().is_some_and(|last| last.fence == token.fence);
        if message.outcome.as_deref() == Some("delegated") && token.as_ref().is_none_or(ended) {
            return self.repeated(tx, message).await;
        }
        is_open(tx, &found, token.as_ref())?;
        let content = message.payload.as_ref().map(Content::of);
        let task = match &self.task {
            Some(id) => find(tx, id).await?,
            None => self.make(tx, content.unwrap_or_default(), &message).await?,
        };
        let output = Json::of(&serde_json::json!({ "task": task.id }))?;
        let item = handle(tx, &self.message, "delegated", Some(output)).await?.item;
        Ok(Delegated { item, task })
    }
}

/// A task inherits the source's data up to this size.
const DATA_MAX: usize = 64 * 1024;

async fn find(tx: &mut Tx<'_>, id: &str) -> Result<Task> {
    let id = TaskId::check("task", id)?;
    let task = task::load(tx, &id).await?.ok_or_else(|| task::not_found(&id))?;
    Ok(task.view(tx.now))
}

impl Delegate {
    /// A repeated call: returns the task that the message was delegated to, and refuses another one.
    async fn repeated(&self, tx: &mut Tx<'_>, message: mail::Message) -> Result<Delegated> {
        let item = Item::of(message);
        tx.caller.acting_as("agent", Some(&item.agent))?;
        let task = item.response.as_ref().and_then(|response| response["task"].as_str()).unwrap_or_default();
        if self.task.as_deref().is_some_and(|named| named != task) {
            let message = format!("message {} was already delegated, to `{task}`", item.id);
            return Err(Error::new(Code::AlreadyFinished, message));
        }
        let task = find(tx, task).await?;
        Ok(Delegated { item, task })
    }

    async fn make(&self, tx: &mut Tx<'_>, content: Content, message: &mail::Message) -> Result<Task> {
        let line = content.text.lines().map(str::trim).find(|line| !line.is_empty());
        let line =
            line.map_or_else(|| format!("message {}", message.id), |line| line.chars().take(120).collect());
        let title = self.title.clone().unwrap_or(line);
        let board = self.board.clone().unwrap_or_else(|| task::add::BOARD.into());
        check::optional_name("to", self.to.as_deref())?;
        let origin = serde_json::json!({
            "message": message.id, "source": content.source, "channel": content.channel, "thread": content.thread,
            "sender": content.sender, "sent_by": content.sent_by, "repository": content.repository,
            // Larger data stays in the message.
            "data": content.data.filter(|data| data.to_string().len() <= DATA_MAX),
        });
        let item = task::plan::Item {
            title,
            body: Some(content.text),
            source: Some(content.source),
            origin: Some(origin),
            to: self.to.clone(),
            offer: self.offer.clone(),
            ..Default::default()
        };
        let mut planned = task::plan::insert(tx, &board, vec![item]).await?;
        planned.tasks.pop().ok_or_else(|| Error::internal("nothing was added"))
    }
}
