use super::{
    Task,
    plan::{Item, insert},
};
use crate::{
    caller::Access,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased},
        prelude::Prelude,
    },
    error::{Error, Result},
    limits::check,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The default board.
pub const BOARD: &str = "main";

/// Add a task to a board.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Add {
    /// The board (default `main`). It is created if it does not exist.
    #[serde(default)]
    pub board: Option<String>,
    pub title: String,
    #[serde(default)]
    pub body: Option<String>,
    /// The acceptance criteria.
    #[serde(default)]
    pub done_when: Option<String>,
    #[serde(default)]
    pub kind: Option<String>,
    /// 0 to 100, higher first (default 50).
    #[serde(default)]
    pub priority: Option<i64>,
    #[serde(default)]
    pub tags: Vec<String>,
    #[serde(default)]
    pub source: Option<String>,
    /// The task's origin: any JSON.
    #[serde(default)]
    pub origin: Option<serde_json::Value>,
    #[serde(default)]
    pub creator: Option<String>,
    /// Assign the task to this agent.
    #[serde(default)]
    pub to: Option<String>,
    /// Offer the task to this agent, which may accept or reject it.
    #[serde(default)]
    pub offer: Option<String>,
    /// Ids of tasks that must be completed first.
    #[serde(default)]
    pub after: Vec<String>,
    /// The most attempts (default 3).
    #[serde(default)]
    pub max_attempts: Option<i64>,
    /// Idempotency key: if a task has this key already, none is added, and the reply is that task.
    #[serde(default)]
    pub key: Option<String>,
    /// Request id: repeating the call with the same id returns the first reply.
    #[serde(default)]
    pub request: Option<String>,
}

impl Add {
    pub fn new(board: impl Into<String>, title: impl Into<String>) -> Self {
        Self { board: Some(board.into()), title: title.into(), ..Self::default() }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Added {
    pub task: Task,
    /// A task with the same key existed already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub existing: bool,
}

impl Op for Add {
    const NAME: &'static str = "task/add";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"title":"write the parser","board":"auth"}"#;
    type Reply = Added;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::nothing().once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Added> {
        check::request(self.request.as_deref())?;
        let board = self.board.unwrap_or_else(|| BOARD.into());
        let item = Item {
            name: None,
            title: self.title,
            body: self.body,
            done_when: self.done_when,
            kind: self.kind,
            priority: self.priority,
            tags: self.tags,
            source: self.source,
            origin: self.origin,
            creator: self.creator,
            to: self.to,
            offer: self.offer,
            after: self.after,
            max_attempts: self.max_attempts,
            key: self.key,
        };
        let mut planned = insert(tx, &board, vec![item]).await?;
        let task = planned.tasks.pop().ok_or_else(|| Error::internal("the task was not added"))?;
        Ok(Added { task, existing: !planned.existing.is_empty() })
    }
}
